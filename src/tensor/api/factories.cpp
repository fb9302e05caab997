#include <ATen/ATen.h>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/dispatch/dispatch.h"
#include "tensor/move/state.h"
#include "tensor/random/key.h"
#include "tensor/random/philox.h"
#include "tensor/random/random.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

/// A tensor of which `make` makes each piece, given its sizes and what it holds.
template <class Make>
at::Tensor made(std::string_view where, at::IntArrayRef sizes, const Layout& layout, World& world,
                at::TensorOptions options, at::ScalarType otherwise, const Make& make) {
  register_kernels();
  const at::ScalarType dtype =
      options.has_dtype() ? c10::typeMetaToScalarType(options.dtype()) : otherwise;
  const bool requires_grad = options.requires_grad();
  options = options.dtype(dtype).device(world.piece_device()).requires_grad(false);
  const Shape shape = to_shape(sizes);
  check_shape(where, shape);
  check_dims(where, layout, shape.size());
  check_partial(where, dtype, layout);
  const BelowAutograd below;
  const Layout reduced = without_partial(layout);
  Pieces pieces;
  for (const Coordinate& at : hosted_coordinates(world, layout.mesh())) {
    const Boxes held = boxes(reduced, shape, at);
    pieces.push_back(make(held, options));
  }
  TensorState& state = TensorState::of(world);
  const Spec spec(layout, shape, dtype);
  if (reduced != layout) {
    const PlanPointer plan = state.plan(spec.with(reduced), layout);
    if (!plan) {
      fail<ValueError>(where, "no exact way leads from values to ", layout,
                       ": the partial values of a norm have no sign; use from_local()");
    }
    pieces = state.move(spec.with(reduced), pieces, plan, {.op = where, .implicit = false});
  }
  at::Tensor out = make_tensor(world.shared_from_this(), state, spec, std::move(pieces));
  if (requires_grad) out.set_requires_grad(true);
  return out;
}

at::ScalarType float_type() { return c10::typeMetaToScalarType(c10::get_default_dtype()); }

at::ScalarType type_of(const at::Scalar& value) {
  return value.isBoolean()         ? at::kBool
         : value.isIntegral(false) ? at::kLong
         : value.isComplex()       ? c10::toComplexType(float_type())
                                   : float_type();
}

template <class FillFunction>
at::Tensor filled(std::string_view where, at::IntArrayRef sizes, const Layout& layout, World& world,
                  const at::TensorOptions& options, at::ScalarType otherwise,
                  const FillFunction& fill) {
  const Shape shape = to_shape(sizes);
  const std::uint64_t key = next_key(TensorState::of(world));
  check_key(world, layout.mesh(), key);
  return made(where, sizes, layout, world, options, otherwise,
              [&](const Boxes& held, const at::TensorOptions& o) {
                const at::Tensor piece = at::empty(to_ref(held.local_shape()), o);
                fill(piece, Region{held, shape}, key);
                return piece;
              });
}

}  // namespace

at::Tensor empty(at::IntArrayRef sizes, const Layout& layout, World& world,
                 at::TensorOptions options) {
  return made("empty", sizes, layout, world, options, float_type(),
              [](const Boxes& held, const at::TensorOptions& o) {
                return at::empty(to_ref(held.local_shape()), o);
              });
}

at::Tensor zeros(at::IntArrayRef sizes, const Layout& layout, World& world,
                 at::TensorOptions options) {
  return made("zeros", sizes, layout, world, options, float_type(),
              [](const Boxes& held, const at::TensorOptions& o) {
                return at::zeros(to_ref(held.local_shape()), o);
              });
}

at::Tensor ones(at::IntArrayRef sizes, const Layout& layout, World& world,
                at::TensorOptions options) {
  return made("ones", sizes, layout, world, options, float_type(),
              [](const Boxes& held, const at::TensorOptions& o) {
                return at::ones(to_ref(held.local_shape()), o);
              });
}

at::Tensor full_of(at::IntArrayRef sizes, const at::Scalar& value, const Layout& layout,
                   World& world, at::TensorOptions options) {
  return made("full_of", sizes, layout, world, options, type_of(value),
              [&](const Boxes& held, const at::TensorOptions& o) {
                return at::full(to_ref(held.local_shape()), value, o);
              });
}

at::Tensor arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                  const Layout& layout, World& world, at::TensorOptions options) {
  const double first = start.toDouble();
  const double width = step.toDouble();
  if (width == 0 || (end.toDouble() - first) / width < 0) {
    fail<ValueError>("arange", "no steps of ", width, " lead from ", first, " to ", end.toDouble());
  }
  const auto n = static_cast<std::int64_t>(std::ceil((end.toDouble() - first) / width));
  const bool integral = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  return made("arange", {n}, layout, world, options, integral ? at::kLong : float_type(),
              [&](const Boxes& held, const at::TensorOptions& o) {
                const auto exact = o.dtype(integral ? at::kLong : at::kDouble);
                std::vector<at::Tensor> runs;
                for (const Range& r : held.runs(0))
                  runs.push_back(at::arange(r.begin, r.end, exact));
                const at::Tensor index = runs.empty() ? at::empty({0}, exact) : at::cat(runs);
                return index.mul(step).add(start).to(o.dtype());
              });
}

at::Tensor rand(at::IntArrayRef sizes, const Layout& layout, World& world,
                at::TensorOptions options) {
  return filled(
      "rand", sizes, layout, world, options, float_type(),
      [](const at::Tensor& t, const Region& r, std::uint64_t k) { fill_uniform(t, r, k, 0, 1); });
}

at::Tensor randn(at::IntArrayRef sizes, const Layout& layout, World& world,
                 at::TensorOptions options) {
  return filled(
      "randn", sizes, layout, world, options, float_type(),
      [](const at::Tensor& t, const Region& r, std::uint64_t k) { fill_normal(t, r, k, 0, 1); });
}

at::Tensor randint(std::int64_t low, std::int64_t high, at::IntArrayRef sizes, const Layout& layout,
                   World& world, at::TensorOptions options) {
  if (high <= low) fail<ValueError>("randint", "no number is in [", low, ", ", high, ")");
  return filled("randint", sizes, layout, world, options, at::kLong,
                [&](const at::Tensor& t, const Region& r, std::uint64_t k) {
                  fill_integers(t, r, k, low, static_cast<std::uint64_t>(high - low));
                });
}

at::Tensor randperm(std::int64_t n, const Layout& layout, World& world, at::TensorOptions options) {
  if (n < 0) fail<ValueError>("randperm", "a permutation of ", n, " numbers does not exist");
  const std::uint64_t key = next_key(TensorState::of(world));
  check_key(world, layout.mesh(), key);
  return made("randperm", {n}, layout, world, options, at::kLong,
              [&](const Boxes& held, const at::TensorOptions& o) {
                const at::Tensor order = random_order(n, key);
                std::vector<at::Tensor> runs;
                for (const Range& r : held.runs(0))
                  runs.push_back(order.narrow(0, r.begin, r.size()));
                const at::Tensor piece = runs.empty() ? order.narrow(0, 0, 0) : at::cat(runs);
                return piece.to(o.device(), c10::typeMetaToScalarType(o.dtype()));
              });
}

}  // namespace intarsia
