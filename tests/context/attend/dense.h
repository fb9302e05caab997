// Attention by its definition, on one rank and in float64, with bounds for the rounding of others.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "intarsia/attention.h"

namespace intarsia::testing {

/// What attention gives, and for each element the sum of the sizes of what is added up for it:
/// rounding errors are in proportion to that.
struct Dense {
  at::Tensor out, query_grad, key_grad, value_grad;
  at::Tensor out_size, query_size, key_size, value_size;
  double largest_score = 0;  ///< of the sums of the sizes of products
};

struct DenseInput {
  at::Tensor query, key, value, grad;  ///< full ones
  AttentionMask mask;
  AttentionOptions options;
  at::Tensor keep = {};  ///< of dropout: 0 or 1/(1-p) for each weight
};

/// Positions, not places: sequences are contiguous.
inline Dense dense_attention(const DenseInput& in) {
  const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
  const std::int64_t heads = in.query.size(1);
  const std::int64_t group = heads / in.key.size(1);
  const auto spread = [&](const at::Tensor& t) { return wide(t).repeat_interleave(group, 1); };
  const auto gathered = [&](const at::Tensor& t) { return t.unflatten(1, {-1, group}).sum(2); };
  const at::Tensor q = wide(in.query);
  const at::Tensor k = spread(in.key);
  const at::Tensor v = spread(in.value);
  const at::Tensor g = wide(in.grad);
  const double scale =
      in.options.scale.value_or(1 / std::sqrt(static_cast<double>(in.query.size(3))));
  const std::int64_t queries = q.size(2);
  const std::int64_t keys = k.size(2);
  at::Tensor seen = at::zeros({in.mask.samples(), 1, queries, keys}, at::kBool);
  auto at = seen.accessor<bool, 4>();
  for (std::int64_t s = 0; s < in.mask.samples(); ++s) {
    for (std::int64_t a = 0; a < queries; ++a) {
      for (std::int64_t b = 0; b < keys; ++b) at[s][0][a][b] = in.mask.sees(s, a, b);
    }
  }
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * scale;
  if (in.options.slopes.defined()) {
    const at::Tensor distance =
        at::arange(keys, at::kDouble).unsqueeze(0) - at::arange(queries, at::kDouble).unsqueeze(1);
    scores = scores + wide(in.options.slopes).view({1, -1, 1, 1}) * distance;
  }
  scores = scores.masked_fill(seen.logical_not(), -INFINITY);
  const at::Tensor weights = at::softmax(scores, -1).nan_to_num(0);
  // Weights that underflow are off by more than a part of themselves.
  const double least =
      in.query.scalar_type() == at::kDouble ? 0x1p-1022 / 0x1p-52 : 0x1p-126 / 0x1p-23;
  const at::Tensor weights_size = weights + seen.to(at::kDouble) * least;
  const auto keep = [&](const at::Tensor& t) { return in.keep.defined() ? t * wide(in.keep) : t; };
  const at::Tensor kept = keep(weights);
  const at::Tensor kept_size = keep(weights_size);
  const auto back = [](const at::Tensor& t) { return t.transpose(2, 3); };

  Dense out;
  out.out = at::matmul(kept, v);
  out.out_size = at::matmul(kept_size, v.abs());
  const at::Tensor of_kept = keep(at::matmul(g, back(v)));
  const at::Tensor of_kept_size = keep(at::matmul(g.abs(), back(v.abs())));
  const at::Tensor along = (g * out.out).sum(-1, true);
  const at::Tensor along_size = (g.abs() * out.out_size).sum(-1, true);
  const at::Tensor of_scores = weights * (of_kept - along) * scale;
  const at::Tensor of_scores_size = weights_size * (of_kept_size + along_size) * std::abs(scale);
  out.query_grad = at::matmul(of_scores, k);
  out.query_size = at::matmul(of_scores_size, k.abs());
  out.key_grad = gathered(at::matmul(back(of_scores), q));
  out.key_size = gathered(at::matmul(back(of_scores_size), q.abs()));
  out.value_grad = gathered(at::matmul(back(kept), g));
  out.value_size = gathered(at::matmul(back(kept_size), g.abs()));
  if (scores.numel() > 0) {
    out.largest_score = (at::matmul(q.abs(), back(k.abs())) * std::abs(scale)).max().item<double>();
    if (in.options.slopes.defined()) {
      out.largest_score +=
          wide(in.options.slopes).abs().max().item<double>() * static_cast<double>(queries + keys);
    }
  }
  return out;
}

/// How much rounding may change a result, in parts of the sum of sizes. Scores are sums of products
/// over the head size, whose error multiplies weights; weights are summed over the keys, gradients
/// over queries or keys; each of `merges` partial results is rounded once or twice. In half
/// precision weights, scores' gradients, partial results and the result are rounded to it.
inline double rounding(const Dense& dense, const DenseInput& in, std::int64_t merges) {
  const auto type = in.query.scalar_type();
  const double wide = type == at::kDouble ? 0x1p-52 : 0x1p-23;
  const auto size = static_cast<double>(in.query.size(3) + in.value.size(3));
  const auto sums = static_cast<double>(in.query.size(2) + in.key.size(2));
  const double computed = wide * (2 * (size + 4) * (1 + dense.largest_score) + 2 * sums +
                                  8 * static_cast<double>(merges) + 16);
  const double low = type == at::kBFloat16 ? 0x1p-8 : type == at::kHalf ? 0x1p-11 : 0;
  return computed + 8 * low;
}

/// Nothing, or where a result is off by more than rounding explains.
inline std::string difference(const std::string& what, const at::Tensor& got,
                              const at::Tensor& want, const at::Tensor& size, double rounding) {
  if (got.sizes() != want.sizes()) return what + " has other sizes";
  if (want.numel() == 0) return {};
  const at::Tensor off = (got.to(at::kDouble) - want).abs();
  const at::Tensor allowed = size * rounding + 1e-300;
  const at::Tensor parts = (off / allowed).nan_to_num(INFINITY);
  const double worst = parts.max().item<double>();
  if (worst <= 1) return {};
  const auto at = parts.argmax().item<std::int64_t>();
  return what + " is off by " + std::to_string(worst) + " times what rounding explains: " +
         std::to_string(got.to(at::kDouble).flatten()[at].item<double>()) + " for " +
         std::to_string(want.flatten()[at].item<double>()) + " at element " + std::to_string(at);
}

}  // namespace intarsia::testing
