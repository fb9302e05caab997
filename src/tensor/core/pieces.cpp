#include "tensor/core/pieces.h"

#include <ATen/ATen.h>

#include <limits>

namespace intarsia {

at::Tensor in_order(at::Tensor piece, const SpecData& spec) {
  if (spec.contiguous) return piece.is_contiguous() ? piece : piece.contiguous();
  if (piece.numel() == 0) return piece;
  // Strides, from the outermost dimension of the spec on, must not grow, but for dimensions of one
  // element and for those that are expanded in the spec too.
  const at::IntArrayRef sizes = piece.sizes();
  const at::IntArrayRef strides = piece.strides();
  bool fits = true;
  std::int64_t last = std::numeric_limits<std::int64_t>::max();
  for (const std::int8_t dim : spec.order) {
    const auto d = static_cast<std::size_t>(dim);
    if (sizes[d] == 1 || (strides[d] == 0 && spec.strides[d] == 0)) continue;
    fits &= strides[d] != 0 && strides[d] <= last;
    last = strides[d];
  }
  if (fits) return piece;
  const Shape dense = strides_in_order_of(to_shape(sizes), spec);
  at::Tensor copy = at::empty_strided(sizes, to_ref(dense), piece.options());
  return copy.copy_(piece);
}

Pieces in_order(Pieces pieces, const SpecData& spec) {
  for (at::Tensor& p : pieces) p = in_order(std::move(p), spec);
  return pieces;
}

}  // namespace intarsia
