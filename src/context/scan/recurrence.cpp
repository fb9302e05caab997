// h[t] = decay[t] * h[t - 1] + input[t], on pieces and over ranks.
#include <ATen/ATen.h>

#include "intarsia/scan.h"

namespace intarsia {
namespace {

/// Running products of decays, and h with 0 before the first position. In log2(positions) steps,
/// each of which joins every position with the one 1, 2, 4, ... before it.
std::pair<at::Tensor, at::Tensor> recurrence(at::Tensor decay, at::Tensor h, std::int64_t dim) {
  const std::int64_t size = h.size(dim);
  for (std::int64_t distance = 1; distance < size; distance *= 2) {
    const auto front = [&](const at::Tensor& t) { return t.narrow(dim, 0, distance); };
    const auto back = [&](const at::Tensor& t) { return t.narrow(dim, distance, size - distance); };
    const auto before = [&](const at::Tensor& t) { return t.narrow(dim, 0, size - distance); };
    h = at::cat({front(h), back(h) + back(decay) * before(h)}, dim);
    decay = at::cat({front(decay), back(decay) * before(decay)}, dim);
  }
  return {decay, h};
}

}  // namespace

ScanLayer linear_recurrence_layer(std::int64_t dim) {
  using Tensors = ScanLayer::Tensors;
  const auto last = [dim](const at::Tensor& t) { return t.narrow(dim, t.size(dim) - 1, 1); };
  return {
      .summary = [dim, last](const Tensors& along, const Tensors&) -> ScanLayer::Summary {
        const auto [products, h] = recurrence(along[1], along[0], dim);
        return {.state = {last(products), last(h)}, .kept = {products, h}};
      },
      .combine = [](const ScanState& a, const ScanState& b) -> ScanState {
        return {a[0] * b[0], b[0] * a[1] + b[1]};
      },
      .outputs = [](const Tensors&, const Tensors&, const Tensors& kept,
                    const std::optional<ScanState>& before) -> Tensors {
        return {before ? kept[1] + kept[0] * (*before)[1] : kept[1]};
      },
  };
}

at::Tensor linear_recurrence(const at::Tensor& decay, const at::Tensor& input,
                             const ScanOptions& options) {
  return scan(linear_recurrence_layer(options.dim), {input, decay}, {}, options)[0];
}

}  // namespace intarsia
