// A thorough search for small meshes: axes play any role in any order.
#pragma once

#include <span>
#include <vector>

#include "plan/bounds.h"
#include "plan/lattice.h"

namespace intarsia {

class WideSearch {
 public:
  /// REQUIRES: all of these outlive it.
  WideSearch(RoleTable& roles, Prices& prices, Bounds& bounds, const Layout& from, const Layout& to,
             std::span<const std::int64_t> shape);

  /// A way that costs less than `known`, the cheapest; or `known`.
  Path improve(const Path& known);
  /// The least bound of memory that a way keeps to.
  std::int64_t least_peak();

 private:
  struct Node {
    State state;
    double rest = 0;          // no way from here costs less
    double seconds = kNever;  // of the cheapest way that leads here, as far as is known
    int steps = 0;
    std::size_t before = 0;
    bool open = false;
  };

  void set_ends();
  void add_role(std::size_t axis, const Role& role);
  void list_roles();
  bool find_free_digits();
  bool has_blocks(std::size_t dim) const;
  void add_shards(std::size_t axis, std::size_t dim);
  void list_nodes(State state, std::size_t axis, double most);
  void expand(std::size_t s, double& most);

  RoleTable& table_;
  Prices& prices_;
  Bounds& bounds_;
  const Layout& from_;
  const Layout& to_;
  std::span<const std::int64_t> shape_;
  std::size_t k_;
  Roles free_;  // for each axis, one that shards and is in no other's way
  bool has_free_digits_ = false;
  bool is_large_ = false;
  int prices_asked_ = 0;
  State begin_;
  State goal_;
  FixedVector<std::vector<std::uint8_t>, kMaxAxes> roles_;  // by axis
  std::vector<Node> nodes_;                                 // begin, goal, others
};

}  // namespace intarsia
