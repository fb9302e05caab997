// Roles by number, states as sets of them, and which roles fit together.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/digits.h"

namespace intarsia {

/// A layout on the way, as a set of roles.
struct State {
  std::array<std::uint8_t, kMaxAxes> id = {};  // of each axis's role
  Mask sharding_roles = 0;                     // by number
  Mask conflicts = 0;                          // roles that cannot stand beside these
  Mask sharding_axes = 0;
  Mask partial_axes = 0;
  std::int64_t piece_bytes = -1;  // once it was asked for

  /// Whether both are the same layout.
  bool same(const State& other) const {
    return sharding_roles == other.sharding_roles && partial_axes == other.partial_axes;
  }
};

/// The roles of a search between two layouts, by number, so that those of a state are a set of
/// bits.
class RoleTable {
 public:
  static constexpr std::size_t kMostRoles = 64;

  /// REQUIRES: all of these outlive it.
  RoleTable(const Layout& from, const Layout& to, std::span<const std::int64_t> shape);

  const Endpoints& endpoints() const { return ends_; }
  const Roles& begin() const { return ends_.begin(); }
  const Roles& goal() const { return ends_.goal(); }
  std::int64_t ranks(std::size_t axis) const { return ends_.ranks(axis); }
  std::size_t size() const { return roles_.size(); }
  const Role& role(std::size_t id) const { return roles_[id].role; }
  /// The role of an axis in a state.
  const Role& role(const State& s, std::size_t axis) const { return roles_[s.id[axis]].role; }

  /// The number of a role of an axis. REQUIRES: there are fewer than kMostRoles.
  std::uint8_t number(std::size_t axis, const Role& role);
  /// Gives an axis a role.
  void play(State& s, std::size_t axis, std::uint8_t id) const;
  /// Whether the roles of a state can stand together.
  bool is_legal(const State& s) const;
  /// The layout of a state; axes of one rank stay as they were. REQUIRES: each axis has a role.
  Layout layout(const State& s) const;

  /// Whether the dimension divides evenly by all digits up to the end of this one.
  bool is_even(std::size_t id) const { return (even_ & bit(id)) != 0; }
  /// Roles that cannot stand beside this one: both fix a digit, as [1,2) and [1,4) do, or digits
  /// that do not nest, as [1,2) and [3,6).
  Mask conflicts(std::size_t id) const { return conflicts_[id]; }
  /// Roles whose digits do not nest with this one's: [1,2) and [1,3), halves and thirds. An
  /// irregular role nests with none.
  Mask apart(std::size_t id) const { return apart_[id]; }
  Mask irregular() const { return irregular_; }
  /// Whether an irregular role has no blocks: each rank gets consecutive positions of what the
  /// roles before it leave.
  bool is_plain(std::size_t id) const;
  /// Whether it is Role::innermost: it depends on whatever regular roles there are in the state.
  bool is_innermost(std::size_t id) const { return roles_[id].role.is_innermost(); }
  /// The roles of the dimension that this one shards.
  Mask beside(std::size_t id) const {
    return in_dim_[static_cast<std::size_t>(roles_[id].role.dim)];
  }
  /// How many of the n values of x's digit y's digit tells apart: with x = [1,4) and y = [1,2), 2,
  /// since halves tell two groups of quarters apart. REQUIRES: both shard one dimension.
  double cover(std::size_t x, std::size_t y);

 private:
  struct Numbered {
    Role role;
    std::size_t axis = 0;
  };

  bool has_outer(const State& s, const Numbered& x, const Layout& layout) const;
  bool can_be_innermost(const State& s, const Numbered& x) const;
  void relate(std::size_t x, std::size_t y);
  bool overlap(const Numbered& x, const Numbered& y) const;
  bool nest(const Numbered& x, const Numbered& y) const;

  Endpoints ends_;
  std::vector<Numbered> roles_;
  std::array<Mask, kMostRoles> conflicts_ = {};
  std::array<Mask, kMostRoles> apart_ = {};
  std::array<Mask, kMaxDims> in_dim_ = {};
  std::array<std::array<float, kMostRoles>, kMostRoles> cover_;  // valid where `covered_` says so
  std::array<Mask, kMostRoles> covered_ = {};
  Mask even_ = 0;
  Mask irregular_ = 0;
  Mask crowded_ = 0;  // roles that split a dimension in more parts than it has elements
  Mask given_ = 0;    // roles of one of the two layouts, or where only some of its axes shard
};

}  // namespace intarsia
