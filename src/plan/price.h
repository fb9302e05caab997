// What a step between two layouts costs, and what it needs of memory.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "intarsia/plan.h"
#include "plan/axis_sets.h"
#include "plan/compare.h"
#include "plan/role_table.h"

namespace intarsia {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Price {
  StepKind kind = StepKind::slice;
  Mask group = 0;
  std::int64_t chunks = 1;
  double seconds = kNever;
};

/// Prices as the text above make_plan says, from the roles of axes alone.
class Prices {
 public:
  /// REQUIRES: all of these outlive it.
  Prices(RoleTable& roles, AxisSets& sets, const Layout& from, const Layout& to,
         std::span<const std::int64_t> shape, const PlanOptions& options);

  /// The cheapest way to do a step, if it can be done.
  Price price(const State& x, const State& y);
  /// The same, within the bound of memory, sent in parts where it must be.
  Price price_within(State& x, State& y);

  /// The most bytes that a rank holds in a state.
  std::int64_t piece(State& s) const;
  /// What a step needs, the old and the new piece included.
  std::int64_t peak(const Price& p, State& x, State& y) const;
  /// The least that it needs, sent in as many parts as may be.
  std::int64_t least_peak(Price p, State& x, State& y) const;

 private:
  bool spreads(Mask axes) const;
  bool one_kind(Mask axes) const;
  Price exchange(const State& x, const State& y, const Changes& c, Mask reduced);
  bool is_even(State& s) const;
  std::int64_t staging_at_once(const Price& p, State& x, State& y) const;
  std::int64_t sent_and_received(const Price& p, State& x, State& y) const;
  std::int64_t staging(const Price& p, State& x, State& y) const;

  RoleTable& roles_;
  AxisSets& sets_;
  StateComparer comparer_;
  const Layout& from_;
  const Layout& to_;
  std::span<const std::int64_t> shape_;
  const PlanOptions& options_;
  Mask begin_partial_ = 0;  // axes
  Mask goal_partial_ = 0;   // axes
};

}  // namespace intarsia
