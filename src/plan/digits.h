// Cuts as digits of positions: the roles that axes play in a layout, and what of them fits
// together.
#pragma once

#include <array>
#include <bit>
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

/// Where the digits that a cut fixes stand. A position in a dimension is a number with digits, the
/// first the most significant; an axis of n ranks that cuts it fixes n values of one digit, and
/// what is fixed before and left open before counts for `begin`: S(0) on axes a=2, then b=3, gives
/// a the digit [1,2) and b the digit [2,6); SS(0,4) on b alone gives it [4,12).
struct Role {
  enum class Kind : std::int8_t { whole, cut, terms };
  Kind kind = Kind::whole;
  std::int8_t dim = -1;
  /// Negative: an irregular cut, whose positions digits cannot say. It depends on all that cut the
  /// dimension before it.
  std::int64_t begin = 1;
  friend bool operator==(const Role&, const Role&) = default;
};

using Roles = FixedVector<Role, kMaxAxes>;

/// The role of each axis; axes of one rank are whole.
Roles roles_of(const Layout& layout);

/// A layout on the way, as a set of roles.
struct State {
  std::array<std::uint8_t, kMaxAxes> id = {};  // of each axis's role
  Mask cut_roles = 0;                          // by number
  Mask conflicts = 0;                          // roles that cannot stand beside these
  Mask cuts = 0;                               // axes
  Mask terms = 0;                              // axes
  std::int64_t piece_bytes = -1;               // once it was asked for

  /// Whether both are the same layout.
  bool same(const State& other) const {
    return cut_roles == other.cut_roles && terms == other.terms;
  }
};

/// The roles of a search between two layouts, by number, so that those of a state are a set of
/// bits.
class RoleTable {
 public:
  static constexpr std::size_t kMostRoles = 64;

  RoleTable(const Layout& from, const Layout& to, std::span<const std::int64_t> shape);

  const Roles& begin() const { return begin_; }
  const Roles& goal() const { return goal_; }
  std::int64_t ranks(std::size_t axis) const { return n_[axis]; }
  std::size_t size() const { return roles_.size(); }
  const Role& role(std::size_t id) const { return roles_[id].role; }
  /// The role of an axis in a state.
  const Role& role(const State& s, std::size_t axis) const { return roles_[s.id[axis]].role; }

  /// How far the digits go that the two layouts fix in a dimension; negative where one cuts it in
  /// an irregular way.
  std::int64_t end_of(std::size_t dim) const;

  /// Where an axis's digit begins, if only some of the axes that cut the dimension before it, in
  /// one of the two layouts, still do.
  FixedVector<std::int64_t, 64> begins_of_some(std::size_t axis, std::size_t dim) const;

  /// A plain cut inside of all regular ones that stand, where these leave blocks open: irregular.
  static Role innermost(std::size_t dim);

  /// The number of a role of an axis. REQUIRES: there are fewer than kMostRoles.
  std::uint8_t number(std::size_t axis, const Role& role);
  /// Gives an axis a role.
  void play(State& s, std::size_t axis, std::uint8_t id) const;
  /// Whether the roles of a state can stand together.
  bool is_legal(const State& s) const;
  /// The layout of a state; axes of one rank stay as they were.
  Layout layout(const State& s) const;

  /// Whether the dimension divides evenly by all digits up to the end of this one.
  bool is_even(std::size_t id) const { return (even_ & bit(id)) != 0; }
  /// Roles that cannot stand beside this one, since both fix a digit, or digits that do not nest.
  Mask conflicts(std::size_t id) const { return conflicts_[id]; }
  /// Of these, those with digits that do not nest.
  Mask apart(std::size_t id) const { return apart_[id]; }
  Mask irregular() const { return irregular_; }
  /// Whether an irregular cut takes parts of what a rank holds that follow each other.
  bool is_plain(std::size_t id) const;
  /// Whether it is a cut that depends on whatever regular ones stand.
  bool is_innermost(std::size_t id) const;
  /// The roles of the dimension that this one cuts.
  Mask beside(std::size_t id) const {
    return in_dim_[static_cast<std::size_t>(roles_[id].role.dim)];
  }
  /// How many of the n values of x's digit y's cut tells apart. REQUIRES: cuts of one dimension.
  double cover(std::size_t x, std::size_t y);

 private:
  struct Numbered {
    Role role;
    std::size_t axis = 0;
  };

  bool is_given(const Numbered& x) const;
  bool has_outer(const State& s, const Numbered& x, const Layout& layout) const;
  bool can_be_innermost(const State& s, const Numbered& x) const;
  void tell_irregular_apart(int dim);
  void find_innermost(const Layout& layout, Roles& roles, int dim) const;
  void relate(std::size_t x, std::size_t y);
  bool overlap(const Numbered& x, const Numbered& y) const;
  bool nest(const Numbered& x, const Numbered& y) const;
  void order_cuts(const State& s, int dim, std::vector<Placement>& placements,
                  LayoutOptions& options) const;

  const Layout& from_;
  const Layout& to_;
  std::span<const std::int64_t> shape_;
  FixedVector<std::int64_t, kMaxAxes> n_;
  Roles begin_;
  Roles goal_;
  std::vector<Numbered> roles_;
  std::array<Mask, kMostRoles> conflicts_ = {};
  std::array<Mask, kMostRoles> apart_ = {};
  std::array<Mask, kMaxDims> in_dim_ = {};
  std::array<std::array<float, kMostRoles>, kMostRoles> cover_;  // valid where `covered_` says so
  std::array<Mask, kMostRoles> covered_ = {};
  Mask even_ = 0;
  Mask irregular_ = 0;
  Mask crowded_ = 0;  // roles that cut a dimension into more parts than it has elements
  Mask given_ = 0;    // roles of one of the two layouts, or where only some of its axes cut
};

}  // namespace intarsia
