#include "parallel/sharded/gathered_groups.h"

#include <algorithm>

namespace intarsia {

void GatheredGroups::gather(GroupIndex g) {
  if (groups_[g]->is_here()) return;
  ++begun_;
  groups_[g]->gather();
  most_ = std::max(most_, live());
}

void GatheredGroups::complete(GroupIndex g, bool first_step) {
  const double waited = groups_[g]->complete();
  GroupReport& report = groups_[g]->report();
  (first_step ? report.exposed_at_first : report.exposed) += waited;
}

void GatheredGroups::drop(GroupIndex g) {
  if (groups_[g]->is_here()) groups_[g]->drop();
  if (current_ == g) current_.reset();
}

void GatheredGroups::keep_only(std::optional<GroupIndex> a, std::optional<GroupIndex> b) {
  for (GroupIndex g = 0; g < groups_.size(); ++g) {
    if (g != a && g != b) drop(g);
  }
}

std::size_t GatheredGroups::live() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(groups_, [](const auto& group) { return group->is_here(); }));
}

}  // namespace intarsia
