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
  Ends ends_;  // how far the digits of a dimension go; negative: cut in an irregular way
  FixedVector<AxisRoles, kMaxAxes> roles_;
  FixedVector<std::size_t, kMaxAxes> weight_;
  std::vector<Node> nodes_;
};

}  // namespace intarsia
