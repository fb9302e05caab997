#include "plan/search.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "intarsia/error.h"
#include "plan/lattice.h"
#include "plan/wide_search.h"

namespace intarsia {
namespace {

constexpr std::size_t kMostAxesForWide = 3;

AxisList axes_of(Mask mask) {
  AxisList out;
  for_each_bit(mask, [&](std::size_t a) { out.push_back(static_cast<std::int8_t>(a)); });
  return out;
}

Mask changed(const Layout& a, const Layout& b) {
  Mask out = 0;
  for (std::size_t x = 0; x < a.mesh().axes(); ++x) {
    if (a.placement(x) != b.placement(x)) out |= bit(x);
  }
  return out;
}

/// The steps of a path.
Plan plan_of(Path path, const RoleTable& roles, Prices& prices, Plan plan) {
  plan.peak_bytes = prices.piece(path.states[0]);
  Layout at = plan.from;
  for (std::size_t i = 1; i < path.states.size(); ++i) {
    State& x = path.states[i - 1];
    State& y = path.states[i];
    if (x.same(y)) continue;
    const Price p = prices.price_within(x, y);
    const Layout after = roles.layout(y);
    plan.peak_bytes = std::max(plan.peak_bytes, prices.peak(p, x, y));
    plan.steps.push_back({p.kind, axes_of(p.group != 0 ? p.group : changed(at, after)), at, after,
                          p.chunks, p.seconds});
    plan.seconds += p.seconds;
    at = after;
  }
  if (at != plan.to) {
    plan.steps.push_back({StepKind::relabel, axes_of(changed(at, plan.to)), at, plan.to});
  }
  return plan;
}

}  // namespace

Plan search(const Layout& from, const Layout& to, std::span<const std::int64_t> shape,
            const PlanOptions& options) {
  RoleTable roles(from, to, shape);
  AxisSets sets(from.mesh(), shape, options);
  Prices prices(roles, sets, from, to, shape, options);
  Bounds bounds(roles, sets, shape);
  Lattice lattice(roles, prices, shape);
  Path path = lattice.shortest();
  std::optional<WideSearch> wide;
  if (from.mesh().axes() <= kMostAxesForWide) {
    wide.emplace(roles, prices, bounds, from, to, shape);
    path = wide->improve(path);
  }
  if (path.states.empty()) {
    fail<ValueError>("make_plan", "no plan from ", from, " to ", to, " for sizes (", join(shape),
                     ") keeps under ", *options.peak_bytes, " bytes; the least possible is ",
                     wide ? wide->least_peak() : lattice.least_peak());
  }
  return plan_of(std::move(path), roles, prices, {from, to, Shape(shape), options.element_size});
}

}  // namespace intarsia
