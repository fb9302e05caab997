#include "prove/made_pieces.h"

#include <ATen/ATen.h>

#include <optional>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "world/transport/reductions.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

/// n tensors that differ and combine to `value`.
Tensors partials_of(const at::Tensor& value, const Placement& how, std::int64_t n,
                    std::uint64_t seed) {
  Tensors partials;
  const auto random = [&](std::int64_t i) {
    return noise(value, hash_mix(seed, static_cast<std::uint64_t>(i) + 1));
  };
  // For each element one rank, drawn by lot, that alone has the value.
  at::Generator g = at::detail::createCPUGenerator(hash_mix(seed, 99));
  const at::Tensor owner = at::randint(n, value.sizes(), g, at::TensorOptions(at::kLong));
  // Of truth values, sums and maxima are "or", products and minima "and".
  Reduction kind = how.reduction();
  if (value.scalar_type() == at::kBool) {
    const bool any = kind == Reduction::sum || kind == Reduction::max || kind == Reduction::bit_or;
    kind = any ? Reduction::bit_or : Reduction::bit_and;
  }
  switch (kind) {
    case Reduction::sum:
    case Reduction::avg: {
      // An average of n partial values, each n times as large, also where it is taken axis by axis.
      const std::int64_t scale = kind == Reduction::avg ? n : 1;
      at::Tensor rest = value * scale;
      // Halves have no bits for noise; twice the value, less the value, is exact in any order.
      const bool halves = value.is_floating_point() && value.element_size() <= 2;
      for (std::int64_t i = 0; i + 1 < n; ++i) {
        partials.push_back(halves ? rest * (i == 0 ? 2 : 0) : random(i) * scale);
        if (!halves || i == 0) rest = rest - partials.back();
      }
      partials.push_back(rest);
      break;
    }
    case Reduction::min:
    case Reduction::max:
      for (std::int64_t i = 0; i < n; ++i) {
        const at::Tensor away = random(i).abs();
        const at::Tensor other = how.reduction() == Reduction::min ? value + away : value - away;
        partials.push_back(at::where(owner == i, value, other));
      }
      break;
    case Reduction::product: {
      at::Tensor rest = value.clone();
      for (std::int64_t i = 0; i + 1 < n; ++i) {
        // Powers of two, of both signs: exact too.
        const at::Tensor lot = random(i);
        partials.push_back(at::where(lot.lt(0), -2.0, 0.5).to(value.scalar_type()));
        rest = rest / partials.back();
      }
      partials.push_back(rest);
      break;
    }
    case Reduction::bit_and:
    case Reduction::bit_or:
      for (std::int64_t i = 0; i < n; ++i) {
        const at::Tensor other =
            kind == Reduction::bit_and ? value.bitwise_or(random(i)) : value.bitwise_and(random(i));
        partials.push_back(at::where(owner == i, value, other));
      }
      break;
    default:
      fail<UnsupportedError>("prove", "partial values of ", how, " cannot be made up");
  }
  return partials;
}

}  // namespace

at::Tensor noise(const at::Tensor& like, std::uint64_t seed) {
  at::Generator g = at::detail::createCPUGenerator(seed);
  if (like.is_complex() || like.is_floating_point()) {
    // Multiples of 1/8, so that partial values of round values add up to them exactly.
    return at::randint(-24, 25, like.sizes(), g, at::TensorOptions(at::kDouble))
        .div(8)
        .to(like.scalar_type());
  }
  if (like.scalar_type() == at::kBool) return at::rand(like.sizes(), g, {}).gt(0.5);
  return at::randint(-3, 4, like.sizes(), g, at::TensorOptions(at::kLong)).to(like.scalar_type());
}

std::vector<Coordinate> coordinates(const Mesh& mesh) {
  std::vector<Coordinate> out;
  for (std::int64_t rank = 0; rank <= mesh.highest(); ++rank) {
    if (const auto at = mesh.coordinate_of(rank)) out.push_back(*at);
  }
  return out;
}

std::int64_t index_among_partial(const Layout& layout, const Coordinate& at) {
  std::int64_t index = 0;
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (layout.placement(a).is_partial()) index = index * layout.mesh().size(a) + at[a];
  }
  return index;
}

std::vector<at::Tensor> made_pieces(const at::Tensor& full_tensor, const Layout& layout,
                                    std::uint64_t seed) {
  const Mesh& mesh = layout.mesh();
  std::int64_t n = 1;
  std::optional<Placement> how;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    if (!layout.placement(a).is_partial()) continue;
    how = layout.placement(a);
    n *= mesh.size(a);
  }
  const Tensors partials = how ? partials_of(full_tensor, *how, n, seed) : Tensors{full_tensor};
  const Layout reduced = without_partial(layout);
  Tensors pieces;
  for (const Coordinate& at : coordinates(mesh)) {
    const at::Tensor& partial = partials[static_cast<std::size_t>(index_among_partial(layout, at))];
    pieces.push_back(local_piece(partial, reduced, at).clone());
  }
  return pieces;
}

at::Tensor value_at(const Pieces& pieces, const Layout& layout, Coordinate at, std::size_t axis) {
  const Mesh& mesh = layout.mesh();
  if (axis == mesh.axes()) return pieces[static_cast<std::size_t>(mesh.rank_at(at))];
  const Placement& p = layout.placement(axis);
  if (!p.is_partial()) return value_at(pieces, layout, at, axis + 1);
  Tensors partials;
  for (std::int64_t i = 0; i < mesh.size(axis); ++i) {
    at[axis] = i;
    partials.push_back(to_partial(value_at(pieces, layout, at, axis + 1), p));
  }
  const at::ScalarType type = pieces[0].scalar_type();
  return from_partials(combine(partials, p), p, mesh.size(axis), type);
}

}  // namespace intarsia
