// What no way between two states can do without: the bounds that shorten the search.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "plan/axis_sets.h"
#include "plan/price.h"
#include "plan/role_table.h"

namespace intarsia {

/// Lower bounds of the prices that `Prices` gives, over ways of any number of steps.
class Bounds {
 public:
  /// REQUIRES: all of these outlive it.
  Bounds(const RoleTable& roles, AxisSets& sets, std::span<const std::int64_t> shape);

  /// No way from one state to another costs less, in seconds.
  double least(const State& x, const State& y);

 private:
  void read_links();
  double least_received(const State& x, const State& y, Mask together) const;
  double least_to_reduce(const State& y, Mask reduced) const;

  const RoleTable& roles_;
  AxisSets& sets_;
  std::span<const std::int64_t> shape_;
  std::size_t k_;
  double relative_;                  // the least that a byte costs, relative to an exchange's
  std::array<Link, kMaxAxes> best_;  // of all groups with an axis
  Mask fast_ = 0;                    // axes with a bandwidth above the slowest
  double slow_bandwidth_ = 0;
  double fast_bandwidth_ = 0;
  double least_start_ = kNever;
  bool all_even_ = false;  // all dimensions divide by all ranks together
};

}  // namespace intarsia
