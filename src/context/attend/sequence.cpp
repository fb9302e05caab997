#include "intarsia/sequence.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/core/impl.h"
#include "tensor/core/translating.h"

namespace intarsia {
namespace {

std::int64_t checked_dim(std::string_view where, const at::Tensor& t, std::int64_t dim) {
  const std::int64_t counted = dim < 0 ? dim + t.dim() : dim;
  if (counted < 0 || counted >= t.dim()) {
    fail<ValueError>(where, describe(t), " has no dimension ", dim);
  }
  if (has_layout(t) && !layout_in_use(t).axes_of(static_cast<int>(counted)).empty()) {
    fail<ValueError>(where, describe(t), " is sharded along dimension ", counted,
                     "; call it on what is not sharded there, and shard what it gives");
  }
  return counted;
}

at::Tensor picked(const at::Tensor& t, std::int64_t dim, const std::vector<std::int64_t>& places) {
  const at::Tensor index = at::tensor(places, at::kLong).to(t.device());
  return t.index_select(dim, index);
}

}  // namespace

at::Tensor in_order(const at::Tensor& tensor, const SequenceOrder& order, std::int64_t dim) {
  at::Tensor out;
  translating([&] {
    const std::int64_t d = checked_dim("in_order", tensor, dim);
    out = picked(tensor, d, order.positions(tensor.size(d)));
  });
  return out;
}

at::Tensor in_positions(const at::Tensor& tensor, const SequenceOrder& order, std::int64_t dim) {
  at::Tensor out;
  translating([&] {
    const std::int64_t d = checked_dim("in_positions", tensor, dim);
    out = picked(tensor, d, order.places(tensor.size(d)));
  });
  return out;
}

at::Tensor next_tokens(const at::Tensor& tokens, std::span<const std::int64_t> documents,
                       std::int64_t ignore_index) {
  at::Tensor out;
  translating([&] {
    const std::int64_t dim = checked_dim("next_tokens", tokens, -1);
    const std::int64_t size = tokens.size(dim);
    out = at::full_like(tokens, ignore_index);
    if (size > 1) out.narrow(dim, 0, size - 1).copy_(tokens.narrow(dim, 1, size - 1));
    for (const std::int64_t start : documents) {
      if (start > 0 && start <= size) out.select(dim, start - 1).fill_(ignore_index);
    }
  });
  return out;
}

at::Tensor positions_in_order(const SequenceOrder& order, std::int64_t size,
                              std::span<const std::int64_t> documents) {
  std::vector<std::int64_t> out = order.positions(size);
  for (std::int64_t& position : out) {
    const auto next = std::upper_bound(documents.begin(), documents.end(), position);
    if (next != documents.begin()) position -= *(next - 1);
  }
  return at::tensor(out, at::kLong);
}

at::Tensor packed(const Packing& packing, const std::vector<at::Tensor>& samples,
                  const at::Scalar& padding) {
  at::Tensor out;
  translating([&] {
    std::vector<at::Tensor> parts;
    std::int64_t size = 0;
    for (const std::int64_t i : packing.samples) {
      if (i < 0 || i >= static_cast<std::int64_t>(samples.size())) {
        fail<ValueError>("packed", "the packing has sample ", i, ", and there are ", samples.size(),
                         "; pass those whose lengths were packed");
      }
      parts.push_back(samples[static_cast<std::size_t>(i)]);
      size += parts.back().size(0);
    }
    if (size + packing.padding != packing.size) {
      fail<ValueError>("packed", "the samples have ", size, " positions together, and the packing ",
                       packing.size - packing.padding, "; pass those whose lengths were packed");
    }
    if (packing.padding > 0) {
      std::vector<std::int64_t> sizes = parts.at(0).sizes().vec();
      sizes[0] = packing.padding;
      parts.push_back(at::full(sizes, padding, parts[0].options()));
    }
    out = at::cat(parts, 0).unsqueeze(0);
  });
  return out;
}

at::Tensor packed_labels(const Packing& packing, const at::Tensor& tokens,
                         std::int64_t ignore_index) {
  at::Tensor out = next_tokens(tokens, packing.documents, ignore_index);
  if (packing.padding > 0) {
    out.narrow(-1, packing.size - packing.padding, packing.padding).fill_(ignore_index);
  }
  return out;
}

}  // namespace intarsia
