#include "parallel/sharded/group_reductions.h"

#include <algorithm>

namespace intarsia {

GroupReductions::GroupReductions(const std::vector<std::unique_ptr<ShardGroup>>& groups,
                                 const GroupOrders& orders)
    : groups_(groups),
      orders_(orders),
      launched_(groups.size(), false),
      unused_(groups.size(), false) {}

void GroupReductions::begin() { launched_.assign(groups_.size(), false); }

void GroupReductions::launch_ready() {
  for (const GroupIndex g : orders_.reductions()) {
    if (launched_[g] || unused_[g] || !groups_[g]->trains()) continue;
    if (!groups_[g]->gradients().is_ready()) return;
    launch(g);
  }
}

void GroupReductions::launch(GroupIndex g) {
  launched_[g] = true;
  wait_for_all_but(1);
  ++begun_;
  ++groups_[g]->report().reductions;
  groups_[g]->gradients().reduce();
  under_way_.push_back(g);
}

bool GroupReductions::has_any() const {
  return std::ranges::any_of(groups_, [](const auto& g) { return g->gradients().has_any(); });
}

void GroupReductions::reduce_kept() {
  for (GroupIndex g = 0; g < groups_.size(); ++g) {
    if (groups_[g]->trains()) launch(g);
  }
  wait_for_all_but(0);
  begin();
}

void GroupReductions::wait_for_all_but(std::size_t last) {
  while (under_way_.size() > last) {
    const GroupIndex g = under_way_.front();
    under_way_.erase(under_way_.begin());
    ++ended_;
    unused_[g] = !groups_[g]->gradients().finish_reduction();
  }
}

std::vector<GroupIndex> GroupReductions::unexpected() const {
  std::vector<GroupIndex> out;
  for (const GroupIndex g : orders_.reductions()) {
    if (!launched_[g] && unused_[g] && groups_[g]->trains()) out.push_back(g);
  }
  return out;
}

void GroupReductions::forget() {
  for (const auto& group : groups_) group->gradients().forget();
  under_way_.clear();
  begin();
}

}  // namespace intarsia
