#include "parallel/sharded/group_orders.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "intarsia/collectives.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using Order = std::vector<GroupIndex>;
constexpr GroupIndex kNone = ~GroupIndex{0};
constexpr std::size_t kLists = 3;  // forward, backward, reductions

bool contains(const Order& list, GroupIndex g) {
  return std::find(list.begin(), list.end(), g) != list.end();
}

bool any_contains(const std::vector<Order>& lists, GroupIndex g) {
  return std::any_of(lists.begin(), lists.end(),
                     [&](const auto& list) { return contains(list, g); });
}

/// What all ranks saw becomes the order of all: that of the rank that saw most. What it did not see
/// follows the group that was assumed to come before it; groups in `unneeded` are left out.
Order agreed(const std::vector<Order>& seen, const Order& assumed, const Order& unneeded) {
  Order out;
  for (const Order& order : seen) {
    if (order.size() > out.size()) out = order;
  }
  GroupIndex before = kNone;
  for (const GroupIndex g : assumed) {
    if (!contains(out, g) && !contains(unneeded, g)) {
      const auto at = before == kNone ? out.begin() : std::find(out.begin(), out.end(), before) + 1;
      out.insert(at, g);
    }
    if (contains(out, g)) before = g;
  }
  return out;
}

/// Lists as one row: each as its length and `limit - 1` places.
at::Tensor encoded(const std::array<const Order*, kLists>& lists, std::size_t limit) {
  std::vector<std::int64_t> row;
  for (const Order* list : lists) {
    const std::size_t end = row.size() + limit;
    const std::size_t n = std::min(list->size(), limit - 1);
    row.push_back(static_cast<std::int64_t>(n));
    row.insert(row.end(), list->begin(), list->begin() + static_cast<std::ptrdiff_t>(n));
    row.resize(end);
  }
  return at::tensor(row, at::kLong);
}

/// The lists of all ranks, by kind.
std::array<std::vector<Order>, kLists> decoded(const at::Tensor& rows, std::size_t limit) {
  const auto length = static_cast<std::int64_t>(limit);
  const auto kinds = static_cast<std::int64_t>(kLists);
  const std::int64_t* values = rows.const_data_ptr<std::int64_t>();
  std::array<std::vector<Order>, kLists> out;
  for (std::int64_t r = 0; r < rows.numel() / (kinds * length); ++r) {
    for (std::int64_t k = 0; k < kinds; ++k) {
      const std::int64_t* list = values + (kinds * r + k) * length;
      out[static_cast<std::size_t>(k)].emplace_back(list + 1, list + 1 + list[0]);
    }
  }
  return out;
}

}  // namespace

GroupOrders::GroupOrders(std::size_t groups) : groups_(groups) {
  for (GroupIndex g = 0; g < groups; ++g) {
    assumed_.forward.push_back(g);
    assumed_.backward.insert(assumed_.backward.begin(), g);
  }
  assumed_.reductions = assumed_.backward;
}

void GroupOrders::saw_use(Phase phase, GroupIndex group) {
  if (learning_) (phase == Phase::forward ? seen_.forward : seen_.backward).push_back(group);
}

void GroupOrders::saw_ready(GroupIndex group) {
  if (learning_) seen_.reductions.push_back(group);
}

void GroupOrders::forget() {
  if (learning_) seen_ = {};
}

void GroupOrders::agree(World& world, const Mesh& mesh) {
  learning_ = false;
  const std::size_t limit = 4 * groups_ + 1;  // of each list, with its length
  const at::Tensor row = encoded({&seen_.forward, &seen_.backward, &seen_.reductions}, limit);
  std::vector<std::string> axes;
  for (std::size_t a = 0; a < mesh.axes(); ++a) axes.emplace_back(mesh.name(a));
  const Comm comm = world.along(mesh, axes);
  const std::vector<at::Tensor> mine(comm.members().size(), row.to(world.piece_device()));
  LedgerTotals sent;
  const Call call{.tensor = "order of groups", .op = "fully_shard", .sent = &sent};
  const auto all = all_gather(comm, mine, 0, {}, call).wait();
  TensorState::of(world).bill().charge_own(call.op, std::string(call.tensor), join(axes, ","),
                                           "S->R", sent, /*backward=*/true);
  if (all.empty()) return;
  const auto [forward, backward, ready] =
      decoded(world.simulated() ? row : all[0].to(at::kCPU), limit);
  // A group that was used, but in backward by no rank, is not needed there. What no rank used at
  // all may be used later, and by one rank only: it stays in the order.
  Order unneeded;
  for (GroupIndex g = 0; g < groups_; ++g) {
    if (any_contains(forward, g) && !any_contains(backward, g)) unneeded.push_back(g);
  }
  assumed_.forward = agreed(forward, assumed_.forward, {});
  assumed_.backward = agreed(backward, assumed_.backward, unneeded);
  assumed_.reductions = agreed(ready, assumed_.reductions, {});
}

}  // namespace intarsia
