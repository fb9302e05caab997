// Which groups of a sharded model are gathered, and the one in use.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/sharded/group_orders.h"
#include "parallel/sharded/shard_group.h"

namespace intarsia {

/// Gathers and drops groups, and counts them. THREADS: guarded by its owner.
class GatheredGroups {
 public:
  /// REQUIRES: the groups outlive this.
  explicit GatheredGroups(const std::vector<std::unique_ptr<ShardGroup>>& groups)
      : groups_(groups) {}

  /// Begins to gather a group that is not here. COLLECTIVE: all ranks of the shard axes.
  void gather(GroupIndex g);
  /// Waits for a group, gathered before; the time is booked as that of a first step or not.
  void complete(GroupIndex g, bool first_step);

  void drop(GroupIndex g);
  void drop_all() { keep_only(std::nullopt, std::nullopt); }
  void keep_only(std::optional<GroupIndex> a, std::optional<GroupIndex> b);

  /// The group that was used last, while it is here.
  std::optional<GroupIndex> current() const { return current_; }
  void set_current(std::optional<GroupIndex> g) { current_ = g; }

  /// How many are here or on their way, the most there ever were, and how many were begun.
  std::size_t live() const;
  std::size_t most() const { return most_; }
  std::int64_t begun() const { return begun_; }

 private:
  const std::vector<std::unique_ptr<ShardGroup>>& groups_;
  std::optional<GroupIndex> current_;
  std::size_t most_ = 0;
  std::int64_t begun_ = 0;
};

}  // namespace intarsia
