#include <algorithm>

#include "intarsia/boxes.h"
#include "intarsia/plan.h"
#include "layout/chunk.h"
#include "layout/coordinates.h"
#include "plan/shared.h"

namespace intarsia {
namespace {

constexpr std::int64_t kMostRanks = 4096;

/// How many positions two lists of ascending runs share.
std::int64_t shared(std::span<const Range> a, std::span<const Range> b) {
  std::int64_t n = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    n += std::max<std::int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    a[i].end < b[j].end ? ++i : ++j;
  }
  return n;
}

/// The most positions that a rank holds of a dimension of this length, which `axes` shard in turn.
/// Example: 9 positions are 5 and 4 over two ranks. In 4 blocks, each over two ranks, 5 are blocks
/// of 2, 2 and 1, of which the first rank holds 3; 4 are blocks of 1, and the first rank holds 4.
std::int64_t longest(const Layout& layout, std::span<const std::int8_t> axes, std::int64_t length) {
  if (axes.empty()) return length;
  const auto axis = static_cast<std::size_t>(axes[0]);
  const std::int64_t n = layout.mesh().size(axis);
  std::int64_t most = 0;
  std::int64_t before = -1;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t held = DimShard{length, n, i, layout.placement(axis).split()}.held();
    if (held != before) most = std::max(most, longest(layout, axes.subspan(1), held));
    before = held;
  }
  return most;
}

template <class Visit>
void for_each_rank(const Mesh& mesh, const Visit& visit) {
  for (std::int64_t i = 0; i < std::min(mesh.size(), kMostRanks); ++i)
    visit(coordinate_at(mesh, i));
}

/// Elements that arrive at a rank in a step.
std::int64_t arriving(const Step& step, std::span<const std::int64_t> shape, const Coordinate& at) {
  if (!step.communicates()) return 0;
  const Mesh& mesh = step.before.mesh();
  const Boxes held = boxes(step.before, shape, at);
  if (step.kind == StepKind::all_reduce) {
    std::int64_t n = 1;
    for (const std::int8_t a : step.axes) n *= mesh.size(static_cast<std::size_t>(a));
    return 2 * (n - 1) * held.numel() / n;
  }
  std::int64_t partials = 1;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    if (step.before.placement(a).is_partial() && !step.after.placement(a).is_partial()) {
      partials *= mesh.size(a);
    }
  }
  const Boxes wanted = boxes(step.after, shape, at);
  return partials * wanted.numel() - shared_elements(held, wanted);
}

}  // namespace

std::int64_t shared_elements(const Boxes& a, const Boxes& b) {
  std::int64_t n = 1;
  for (std::size_t d = 0; d < a.dims(); ++d) n *= shared(a.runs(d), b.runs(d));
  return n;
}

std::int64_t piece_bytes(const Layout& layout, std::span<const std::int64_t> shape,
                         std::int64_t element_size) {
  const Shape first = local_shape(layout, shape, Coordinate(layout.mesh().axes(), 0));
  std::int64_t n = element_size;
  std::size_t next = 0;
  const auto axes = layout.sharding_axes();  // by dimension
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::size_t begin = next;
    bool nested = false;  // blocks of what another axis left
    for (; next < axes.size() && layout.placement(axes[next]).dim() == static_cast<int>(d); ++next)
      nested = nested || (next > begin && layout.placement(axes[next]).split() > 1);
    // The first chunks are the longest, unless blocks of a shorter one leave more to the first.
    n *= nested ? longest(layout, axes.subspan(begin, next - begin), shape[d]) : first[d];
  }
  return n;
}

Traffic traffic(const Step& step, std::span<const std::int64_t> shape, std::int64_t element_size) {
  Plan plan{step.before, step.after, Shape(shape), element_size, {step}};
  return traffic(plan);
}

Traffic traffic(const Plan& plan) {
  Traffic out;
  for_each_rank(plan.from.mesh(), [&](const Coordinate& at) {
    std::int64_t received = 0;
    for (const Step& step : plan.steps) received += arriving(step, plan.shape, at);
    const Boxes held = boxes(plan.from, plan.shape, at);
    const Boxes wanted = boxes(plan.to, plan.shape, at);
    const std::int64_t missing = wanted.numel() - shared_elements(held, wanted);
    out.received = std::max(out.received, received);
    out.received_by_all += received;
    out.missing = std::max(out.missing, missing);
    out.missing_by_all += missing;
  });
  for (std::int64_t* value :
       {&out.received, &out.received_by_all, &out.missing, &out.missing_by_all}) {
    *value *= plan.element_size;
  }
  return out;
}

}  // namespace intarsia
