#include "tensor/core/neutral.h"

#include <ATen/ATen.h>

#include <limits>

namespace intarsia {
namespace {

at::Tensor filled(const Shape& sizes, const at::TensorOptions& options, bool highest) {
  const at::IntArrayRef size(sizes.data(), sizes.size());
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  if (at::isFloatingType(dtype)) {
    const double inf = std::numeric_limits<double>::infinity();
    return at::full(size, highest ? inf : -inf, options);
  }
  if (dtype == at::kBool) return at::full(size, highest, options);
  std::int64_t value = 0;
  AT_DISPATCH_INTEGRAL_TYPES(dtype, "neutral_piece", [&] {
    value = static_cast<std::int64_t>(highest ? std::numeric_limits<scalar_t>::max()
                                              : std::numeric_limits<scalar_t>::lowest());
  });
  return at::full(size, value, options);
}

}  // namespace

at::Tensor neutral_partial(const at::Tensor& t, const Placement& partial) {
  switch (partial.reduction()) {
    case Reduction::sum:
    case Reduction::bit_or:
    case Reduction::bit_xor:
    case Reduction::norm:
      return at::zeros_like(t);
    case Reduction::product:
      return at::ones_like(t);
    case Reduction::bit_and:
      return at::zeros_like(t).bitwise_not();
    // These combine equal values to themselves, NaNs included.
    case Reduction::avg:
    case Reduction::min:
    case Reduction::max:
      return t;
  }
  return t;
}

at::Tensor neutral_piece(const Shape& sizes, const Layout& layout,
                         const at::TensorOptions& options) {
  const at::IntArrayRef size(sizes.data(), sizes.size());
  for (const Placement& p : layout.placements()) {
    if (!p.is_partial()) continue;
    switch (p.reduction()) {
      case Reduction::product:
        return at::ones(size, options);
      case Reduction::bit_and:
        return at::zeros(size, options).bitwise_not();
      case Reduction::min:
        return filled(sizes, options, true);
      case Reduction::max:
        return filled(sizes, options, false);
      default:
        return at::zeros(size, options);
    }
  }
  return at::zeros(size, options);
}

}  // namespace intarsia
