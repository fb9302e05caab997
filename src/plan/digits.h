// Shards as digits of positions: the roles that axes play in a layout, and in the two layouts that
// a plan leads between.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "intarsia/layout.h"

namespace intarsia {

using Mask = std::uint64_t;  // a set of axes, or of roles

inline Mask bit(std::size_t i) { return Mask{1} << i; }

template <class Visit>
void for_each_bit(Mask mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(static_cast<std::size_t>(std::countr_zero(mask)));
}

/// What an axis does to the tensor in a layout: the tensor is replicated along it, sharded, or
/// partial.
///
/// Where it is sharded, the role is a digit. A position in a dimension is written as a number with
/// mixed digits, the most significant first. An axis of n ranks that shards the dimension fixes one
/// digit of n values. `begin` is how many values the digits before it have together, those that
/// other axes fix and those that are left open. The digit is written [begin, begin * n).
///
/// Examples, on axes a=2, b=3 and a dimension of 24:
///
///   S(0),S(0): a fixes the digit [1,2), b the digit [2,6). Position p = 12 i + 4 j + r, where a
///   fixes i, b fixes j, and r is 0..3. The rank at a=1, b=2 holds 20..23.
///
///   R,SS(0,4): b fixes the digit [4,12). p = 6 k + 2 j + r, where the block k is open, b fixes j,
///   and r is 0..1. The ranks at b=1 hold 2,3, 8,9, 14,15, 20,21.
///
///   SS(0,4),S(0): a fixes [4,8), so that 0,1,2, 6,7,8, 12,13,14, 18,19,20 are left at a=0. Of
///   these b gives its ranks 0,1,2,6 and 7,8,12,13 and 14,18,19,20: b is irregular, no digit says
///   that.
struct Role {
  enum class Kind : std::int8_t { replicated, sharded, partial };
  Kind kind = Kind::replicated;
  std::int8_t dim = -1;
  /// Negative: irregular, the positions cannot be said by a digit. They depend on all axes that
  /// shard the dimension before this one.
  std::int64_t begin = 1;

  /// Values of `begin` that stand for irregular roles.
  static constexpr std::int64_t kIrregular = -1;        // as in the layout to come from
  static constexpr std::int64_t kIrregularInGoal = -2;  // as in the other, where that differs
  static constexpr std::int64_t kInnermost = -3;        // see `innermost`

  /// The role that shards, without blocks, what all regular roles of the dimension leave. It is
  /// irregular, since these leave blocks open.
  static Role innermost(std::size_t dim) {
    return {Kind::sharded, static_cast<std::int8_t>(dim), kInnermost};
  }
  bool is_innermost() const { return begin == kInnermost; }
  friend bool operator==(const Role&, const Role&) = default;
};

using Roles = FixedVector<Role, kMaxAxes>;

/// The role of each axis; along axes of one rank, the tensor is replicated.
Roles roles_of(const Layout& layout);

/// The two layouts that a plan leads between, as roles: what is irregular in both, but not alike,
/// is told apart; what is innermost is found.
class Endpoints {
 public:
  /// REQUIRES: the same mesh; all of these outlive it.
  Endpoints(const Layout& from, const Layout& to, std::span<const std::int64_t> shape);

  const Layout& from() const { return from_; }
  const Layout& to() const { return to_; }
  std::int64_t ranks(std::size_t axis) const { return n_[axis]; }
  std::int64_t length(std::size_t dim) const { return shape_[dim]; }
  /// The role of each axis in the layout to come from, and in the other.
  const Roles& begin() const { return begin_; }
  const Roles& goal() const { return goal_; }

  /// How far the digits go that the two layouts fix in a dimension; negative where one shards it
  /// in an irregular way.
  std::int64_t end_of(std::size_t dim) const;

  /// Where an axis's digit begins, if only some of the axes that shard the dimension before it, in
  /// one of the two layouts, still do. With S(0),S(0) on a=2, b=3, b's digit begins at 2, or at 1
  /// without a.
  FixedVector<std::int64_t, 64> begins_of_some(std::size_t axis, std::size_t dim) const;

  /// Whether a role that shards is the axis's own in one of the two layouts; or, where the
  /// dimension has no room for all digits, one of `begins_of_some`.
  bool has(std::size_t axis, const Role& role) const;

  /// The layout in which axes play these roles; axes of one rank stay as they were.
  /// REQUIRES: the roles can stand together; irregular ones are the innermost, or of these layouts.
  Layout layout(const Roles& roles) const;

 private:
  void tell_irregular_apart(int dim);
  void find_innermost(const Layout& layout, Roles& roles, int dim) const;
  void order_axes(const Roles& roles, int dim, std::vector<Placement>& placements,
                  LayoutOptions& options) const;

  const Layout& from_;
  const Layout& to_;
  std::span<const std::int64_t> shape_;
  FixedVector<std::int64_t, kMaxAxes> n_;
  Roles begin_;
  Roles goal_;
};

}  // namespace intarsia
