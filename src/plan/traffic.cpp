#include <algorithm>

#include "intarsia/boxes.h"
#include "intarsia/plan.h"
#include "layout/coordinates.h"
#include "plan/shared.h"

namespace intarsia {
namespace {

constexpr std::int64_t kMostRanks = 4096;

std::int64_t elements(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t s : shape) n *= s;
  return n;
}

/// How many positions two lists of ascending runs share.
std::int64_t shared(std::span<const Range> a, std::span<const Range> b) {
  std::int64_t n = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    n += std::max<std::int64_t>(0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    a[i].end < b[j].end ? ++i : ++j;
  }
  return n;
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
  // The first chunks are the longest.
  return elements(local_shape(layout, shape, Coordinate(layout.mesh().axes(), 0))) * element_size;
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
