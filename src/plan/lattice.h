// A quick search: every axis plays a few roles in one order, and one pass finds the shortest path.
#pragma once

#include <span>
#include <vector>

#include "plan/price.h"

namespace intarsia {

/// A way from one layout to another.
struct Path {
  std::vector<State> states;  // empty: there is none
  double seconds = kNever;
};

/// A node of the lattice is a layout: each axis plays one of its roles, at a place in its list. The
/// number of a node counts the places, those of the first axis fastest. An axis never goes back in
/// its list, so every step leads to a node of a higher number; node 0 is the start, the last node
/// is the goal.
///
/// An example: S(0),S(1) -> R,S(0) on [dp=2,tp=2]. The roles of dp are S(0), R; those of tp are
/// S(1), R, S(0). Node s has place s % 2 of dp and s / 2 % 3 of tp:
///
///   0: S(0),S(1)   1: R,S(1)   2: S(0),R   3: R,R   4: S(0),S(0)   5: R,S(0)
///
/// Node 4 is not legal, since both axes would fix the digit [1,2) of dimension 0. From node 2, a
/// step can lead to 3 or to 5.
class Lattice {
 public:
  /// REQUIRES: all of these outlive it.
  Lattice(RoleTable& roles, Prices& prices, std::span<const std::int64_t> shape);

  Path shortest();
  /// The least bound of memory that a way keeps to.
  std::int64_t least_peak();

 private:
  static constexpr std::size_t kMostRoles = 6;
  /// The roles of one axis, by number, in the order in which it plays them.
  struct AxisRoles {
    std::uint8_t count = 0;
    std::array<std::uint8_t, kMostRoles> id = {};
  };
  struct Node {
    State state;
    std::array<std::uint8_t, kMaxAxes> place = {};  // of the role among those of its axis
    bool legal = true;
  };
  using Ends = FixedVector<std::int64_t, kMaxDims>;

  bool changes_nothing(std::size_t dim) const;
  void set_roles(std::size_t a, bool sends, const Ends& ends);
  void add_helpers(std::size_t a, const Ends& ends);
  void list_nodes();
  template <class Visit>
  void for_each_after(std::size_t s, const Visit& visit) const;

  RoleTable& table_;
  Prices& prices_;
  std::span<const std::int64_t> shape_;
  std::size_t k_;
  Ends ends_;  // how far the digits of a dimension go; negative: sharded in an irregular way
  FixedVector<AxisRoles, kMaxAxes> roles_;
  FixedVector<std::size_t, kMaxAxes> weight_;
  std::vector<Node> nodes_;
};

}  // namespace intarsia
