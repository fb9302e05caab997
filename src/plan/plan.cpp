#include "intarsia/plan.h"

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

/// The axes that cut `dim`, in order. Axes of one rank cut nothing.
AxisList cuts_of(const Layout& layout, int dim) {
  AxisList out;
  for (const std::int8_t a : layout.axes_of(dim)) {
    if (layout.mesh().size(a) > 1) out.push_back(a);
  }
  return out;
}

/// How many of the cuts of `dim`, from the first on, both layouts make alike.
std::size_t common_cuts(const Layout& a, const Layout& b, int dim) {
  const AxisList in_a = cuts_of(a, dim);
  const AxisList in_b = cuts_of(b, dim);
  std::size_t n = 0;
  while (n < std::min(in_a.size(), in_b.size()) && in_a[n] == in_b[n] &&
         a.placement(in_a[n]) == b.placement(in_b[n])) {
    ++n;
  }
  return n;
}

/// Whether the axis's cut in `now` stays: it and all cuts before it are those of `to`.
bool stays(const Layout& now, const Layout& to, std::size_t axis) {
  const int dim = now.placement(axis).dim();
  const AxisList cuts = cuts_of(now, dim);
  const auto place =
      std::find(cuts.begin(), cuts.end(), static_cast<std::int8_t>(axis)) - cuts.begin();
  return static_cast<std::size_t>(place) < common_cuts(now, to, dim);
}

/// Whether the axis's cut is the last of its dimension.
bool is_last_cut(const Layout& now, std::size_t axis) {
  return cuts_of(now, now.placement(axis).dim()).back() == static_cast<std::int8_t>(axis);
}

/// Whether the cut that `to` makes by this axis is the next one to make in `now`, once the axis
/// itself is out of the way.
bool can_be_cut(const Layout& now, const Layout& to, std::size_t axis) {
  const int dim = to.placement(axis).dim();
  const Layout open = now.with(axis, Placement::replicate());
  const AxisList target = cuts_of(to, dim);
  const std::size_t made = cuts_of(open, dim).size();
  return common_cuts(open, to, dim) == made && made < target.size() &&
         target[made] == static_cast<std::int8_t>(axis);
}

/// The placement that a step of this kind would give the axis now, or nothing when it cannot be
/// taken.
std::optional<Placement> outcome(StepKind kind, const Layout& now, const Layout& to,
                                 std::size_t axis) {
  const Placement& have = now.placement(axis);
  const Placement& want = to.placement(axis);
  if (now.mesh().size(axis) == 1) {
    if (kind == StepKind::relabel && have != want) return want;
    return std::nullopt;
  }
  const bool cut_stays = have.is_shard() && stays(now, to, axis);
  const bool can_leave = !have.is_shard() || (!cut_stays && is_last_cut(now, axis));
  const bool can_arrive = want.is_shard() && can_be_cut(now, to, axis);
  switch (kind) {
    case StepKind::relabel:
      break;
    case StepKind::slice:
      if (have.is_replicate() && can_arrive) return want;
      break;
    case StepKind::reduce_scatter:
      if (have.is_partial() && can_arrive) return want;
      break;
    case StepKind::all_to_all:
      if (have.is_shard() && have.dim() != want.dim() && can_leave && can_arrive) return want;
      break;
    case StepKind::all_gather:
      if (have.is_shard() && can_leave) return Placement::replicate();
      break;
    case StepKind::all_reduce:
      if (have.is_partial() && want.is_replicate()) return want;
      break;
    case StepKind::make_partial:
      if (have.is_replicate() && want.is_partial()) return want;
      break;
  }
  return std::nullopt;
}

/// The first step, in the order of preference and then of axes, that can be taken.
std::optional<Step> next_step(const Layout& now, const Layout& to) {
  // Pieces shrink before they travel and travel before they grow.
  for (const StepKind kind :
       {StepKind::slice, StepKind::reduce_scatter, StepKind::all_to_all, StepKind::all_gather,
        StepKind::all_reduce, StepKind::make_partial, StepKind::relabel}) {
    for (std::size_t axis = 0; axis < now.mesh().axes(); ++axis) {
      if (const auto placement = outcome(kind, now, to, axis)) {
        return Step{kind, axis, now, now.with(axis, *placement)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_text(StepKind kind) {
  switch (kind) {
    case StepKind::relabel:
      return "relabel";
    case StepKind::slice:
      return "slice";
    case StepKind::make_partial:
      return "make_partial";
    case StepKind::reduce_scatter:
      return "reduce_scatter";
    case StepKind::all_to_all:
      return "all_to_all";
    case StepKind::all_gather:
      return "all_gather";
    case StepKind::all_reduce:
      return "all_reduce";
  }
  return "?";
}

bool Step::communicates() const {
  return kind != StepKind::relabel && kind != StepKind::slice && kind != StepKind::make_partial;
}

std::string Step::to_string() const {
  return concat(to_text(kind), ' ', before.mesh().name(axis), ": ", before.placements_text(),
                " -> ", after.placements_text());
}

std::size_t Plan::collectives() const {
  return static_cast<std::size_t>(
      std::count_if(steps.begin(), steps.end(), [](const Step& s) { return s.communicates(); }));
}

std::string Plan::to_string() const {
  std::string text = concat(from.mesh(), ' ', from.placements_text(), " -> ", to.placements_text());
  for (const Step& s : steps) text += concat("\n  ", s);
  return text;
}

std::optional<Plan> make_plan(const Layout& from, const Layout& to) {
  if (from.mesh() != to.mesh()) {
    fail<ValueError>("make_plan", from, " and ", to, " are on different meshes");
  }
  for (std::size_t a = 0; a < from.mesh().axes(); ++a) {
    const Placement& have = from.placement(a);
    const Placement& want = to.placement(a);
    if (have.is_partial() && want.is_partial() && have != want) return std::nullopt;
  }
  Plan plan{from, to, {}};
  Layout now = from;
  while (now != to) {
    const auto step = next_step(now, to);
    if (!step) return std::nullopt;
    plan.steps.push_back(*step);
    now = step->after;
  }
  return plan;
}

}  // namespace intarsia
