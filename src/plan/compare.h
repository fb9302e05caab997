// What a step changes: which ranks must talk, and from how many each gets its new piece.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "plan/axis_sets.h"
#include "plan/role_table.h"

namespace intarsia {

/// How the axes that shard before a step do after it.
struct Changes {
  Mask left = 0;  // axes along which ranks must talk: their shards do not stay
  Mask same = 0;  // axes that fix the same digit before and after
};

/// Compares what ranks hold before and after a step, by the roles of axes: a state `x` with a state
/// `y` that follows it.
class StateComparer {
 public:
  /// REQUIRES: all of these outlive it.
  StateComparer(RoleTable& roles, const AxisSets& sets, std::span<const std::int64_t> shape)
      : roles_(roles), sets_(sets), shape_(shape) {}

  Changes changes(const State& x, const State& y) const;
  /// The old roles of dimensions that are sharded before and after, but not alike, and in an
  /// irregular way in at least one of the two.
  Mask apart_by_irregular(const State& x, const State& y) const;
  /// From how many ranks a rank gets its new piece, itself included. Only the roles `wanted` of the
  /// new state tell ranks apart; all ranks along those that are `apart` count.
  double sources(const State& x, Mask wanted, Mask axes, Mask apart);
  /// Whether every rank of a group gets what one of them has, and each gives to one.
  bool is_one_to_one(const State& x, const State& y, Mask left, Mask apart);
  /// Whether gathering along these axes only joins pieces, in the order of ranks: they shard the
  /// outermost dimension, and before them nothing is open.
  bool joins_rows(const State& x, Mask group) const;

 private:
  Mask before(const State& s, std::size_t axis) const;
  bool same_digits(const State& x, const State& y, std::size_t axis) const;
  bool leaves_same(const State& x, const State& y, std::size_t axis) const;
  const std::vector<Mask>& held_along(const State& s, std::size_t axis, Mask outer) const;

  RoleTable& roles_;
  const AxisSets& sets_;
  std::span<const std::int64_t> shape_;
  mutable std::deque<std::pair<Mask, std::vector<Mask>>> held_;  // by roles
};

}  // namespace intarsia
