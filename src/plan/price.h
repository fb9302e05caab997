// What a step between two layouts costs, and what it needs of memory.
#pragma once

#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "intarsia/plan.h"
#include "plan/digits.h"

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
  Prices(RoleTable& roles, const Layout& from, const Layout& to,
         std::span<const std::int64_t> shape, const PlanOptions& options);

  /// The cheapest way to do a step, if it can be done.
  Price price(const State& x, const State& y);
  /// The same, within the bound of memory, cut into parts where it must be.
  Price price_within(State& x, State& y);
  /// No way from one state to another costs less.
  double least(const State& x, const State& y);

  /// The most bytes that a rank holds in a state.
  std::int64_t piece(State& s) const;
  /// What a step needs, the old and the new piece included.
  std::int64_t peak(const Price& p, State& x, State& y) const;
  /// The least that it needs, cut into as many parts as may be.
  std::int64_t least_peak(Price p, State& x, State& y) const;

 private:
  struct Changes {
    Mask left = 0;  // axes along which ranks must talk: their cuts do not stay
    Mask same = 0;  // axes that fix the same digit before and after
  };

  const Link& link(Mask group);
  void read_links();
  Mask before(const State& s, std::size_t axis) const;
  bool same_digits(const State& x, const State& y, std::size_t axis) const;
  bool leaves_same(const State& x, const State& y, std::size_t axis) const;
  const std::vector<Mask>& held_along(const State& s, std::size_t axis, Mask outer) const;
  Changes changes(const State& x, const State& y) const;
  Mask apart_by_irregular(const State& x, const State& y) const;
  double sources(const State& x, Mask wanted, Mask cuts, Mask apart);
  bool is_one_to_one(const State& x, const State& y, Mask left, Mask apart);
  bool spreads(Mask axes) const;
  bool one_kind(Mask axes) const;
  bool joins_rows(const State& x, Mask group) const;
  Price exchange(const State& x, const State& y, const Changes& c, Mask reduced);
  double least_received(const State& x, const State& y, Mask together) const;
  double least_to_reduce(const State& y, Mask reduced) const;
  bool is_even(State& s) const;
  std::int64_t whole_staging(const Price& p, State& x, State& y) const;
  std::int64_t sent_and_received(const Price& p, State& x, State& y) const;
  std::int64_t staging(const Price& p, State& x, State& y) const;

  RoleTable& roles_;
  const Layout& from_;
  const Layout& to_;
  std::span<const std::int64_t> shape_;
  const PlanOptions& options_;
  const Topology* topology_;
  std::size_t k_;
  double bytes_;
  double relative_;               // the least that a byte costs, relative to an exchange's
  Mask begin_terms_ = 0;          // axes
  Mask goal_terms_ = 0;           // axes
  std::vector<double> products_;  // numbers of ranks, by sets of axes
  mutable std::deque<std::pair<Mask, std::vector<Mask>>> held_;  // by roles
  std::vector<const Link*> links_;                               // by sets of axes
  std::array<Link, kMaxAxes> best_;                              // of all groups with an axis
  Mask fast_ = 0;  // axes with a bandwidth above the slowest
  double slow_bandwidth_ = 0;
  double fast_bandwidth_ = 0;
  double least_start_ = kNever;
  bool all_even_ = false;  // all dimensions divide by all ranks together
};

}  // namespace intarsia
