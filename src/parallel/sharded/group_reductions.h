// The reductions of one backward: which groups are reduced, and when.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "intarsia/fully_shard.h"
#include "parallel/sharded/group_orders.h"
#include "parallel/sharded/shard_group.h"

namespace intarsia {

/// Begins the reductions of groups in the order that all ranks follow, as gradients come; at most
/// two are under way. A group that no rank used in the last step is left out, unless some rank uses
/// it now. THREADS: guarded by its owner.
class GroupReductions {
 public:
  /// REQUIRES: groups and orders outlive this.
  GroupReductions(const std::vector<std::unique_ptr<ShardGroup>>& groups,
                  const GroupOrders& orders);

  /// A backward begins.
  void begin();
  /// Begins reductions as far as gradients are there. COLLECTIVE: as GroupGradients::reduce.
  void launch_ready();
  /// Reduces all that is left, and waits. `ask` says which of groups that no rank used in the last
  /// step some rank has gradients of now; the ranks ask each other. COLLECTIVE.
  template <class Ask>
  void finish(const Ask& ask) {
    for (const GroupIndex g : orders_.reductions()) {
      if (!launched_[g] && !unused_[g] && groups_[g]->trains()) launch(g);
    }
    const std::vector<GroupIndex> left_out = unexpected();
    if (!left_out.empty()) {
      for (const GroupIndex g : ask(left_out)) launch(g);
    }
    wait_for_all_but(0);
  }
  /// Whether some group has gradients that were not reduced.
  bool has_any() const;
  /// Reduces those that were kept of several backwards, and waits. COLLECTIVE.
  void reduce_kept();
  /// Drops all gradients, after a failure.
  void forget();

  /// How many were begun, and how many ended, ever.
  std::int64_t begun() const { return begun_; }
  std::int64_t ended() const { return ended_; }

 private:
  void launch(GroupIndex g);
  void wait_for_all_but(std::size_t last);
  std::vector<GroupIndex> unexpected() const;

  const std::vector<std::unique_ptr<ShardGroup>>& groups_;
  const GroupOrders& orders_;
  std::vector<bool> launched_;
  std::vector<bool> unused_;  // no rank used the group in the last step
  std::vector<GroupIndex> under_way_;
  std::int64_t begun_ = 0;
  std::int64_t ended_ = 0;
};

}  // namespace intarsia
