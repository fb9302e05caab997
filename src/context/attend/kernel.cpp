// The attention ops of devices, and one that is composed of others.
#include <ATen/ATen.h>

#include <cmath>

#include "context/attend/device_kernels.h"
#include "context/mask/tiles.h"
#include "intarsia/attention.h"

namespace intarsia {
namespace {

// A tile of scores stays in the cache of a core for common head counts.
constexpr std::int64_t kBlockQueries = 128;
constexpr std::int64_t kBlockKeys = 1024;

std::optional<at::Tensor> optional(const at::Tensor& t) {
  return t.defined() ? std::optional(t) : std::nullopt;
}

std::pair<at::Tensor, at::Tensor> cpu_forward(const AttentionBlock& b) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      b.query, b.key, b.value, 0.0, b.causal, optional(b.bias), b.scale);
  return {out, logsumexp};
}

std::array<at::Tensor, 3> cpu_backward(const AttentionBlock& b, const at::Tensor& grad,
                                       const at::Tensor& out, const at::Tensor& logsumexp) {
  auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, b.query, b.key, b.value, out, logsumexp, 0.0, b.causal, optional(b.bias), b.scale);
  return {q, k, v};
}

// ---- by blocks -------------------------------------------------------------------------------

at::Tensor computed(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat);
}

/// Keys and values as [batch, key heads, 1, ...], and what belongs to queries as [batch, key heads,
/// group, ...]: heads that share keys meet them by expansion.
at::Tensor grouped(const at::Tensor& t, std::int64_t key_heads) {
  return t.unflatten(1, {key_heads, t.size(1) / key_heads});
}

struct BlockOperands {
  explicit BlockOperands(const AttentionBlock& b)
      : key_heads(b.key.size(1)),
        query(grouped(computed(b.query), key_heads)),
        key(computed(b.key).unsqueeze(2)),
        value(computed(b.value).unsqueeze(2)) {}

  std::int64_t key_heads;
  at::Tensor query, key, value;
};

at::Tensor scores(const AttentionBlock& b, const BlockOperands& in) {
  at::Tensor out = at::matmul(in.query, in.key.transpose(-2, -1)).mul_(b.scale);
  if (b.bias.defined()) {
    const auto sizes = out.sizes();
    const at::Tensor bias = b.bias.expand({sizes[0], sizes[1] * sizes[2], sizes[3], sizes[4]});
    out.add_(grouped(bias, in.key_heads));
  }
  if (b.causal) {
    const at::Tensor seen =
        at::ones({out.size(-2), out.size(-1)}, out.options().dtype(at::kBool)).tril();
    out.masked_fill_(seen.logical_not(), -INFINITY);
  }
  return out;
}

at::Tensor kept(const AttentionBlock& b, const BlockOperands& in, const at::Tensor& weights) {
  return b.keep.defined() ? weights * grouped(b.keep, in.key_heads) : weights;
}

std::pair<at::Tensor, at::Tensor> block_forward(const AttentionBlock& b) {
  const BlockOperands in(b);
  const at::Tensor s = scores(b, in);
  const at::Tensor logsumexp = at::logsumexp(s, -1);
  const at::Tensor finite = logsumexp.masked_fill(logsumexp == -INFINITY, 0);
  const at::Tensor weights = (s - finite.unsqueeze(-1)).exp_();
  const at::Tensor out = at::matmul(kept(b, in, weights), in.value);
  return {out.flatten(1, 2), logsumexp.flatten(1, 2)};
}

std::array<at::Tensor, 3> block_backward(const AttentionBlock& b, const at::Tensor& grad,
                                         const at::Tensor& out, const at::Tensor& logsumexp) {
  const BlockOperands in(b);
  const at::Tensor g = grouped(computed(grad), in.key_heads);
  const at::Tensor o = grouped(computed(out), in.key_heads);
  const at::Tensor weights =
      (scores(b, in) - grouped(logsumexp, in.key_heads).unsqueeze(-1)).exp_();
  const at::Tensor of_value =
      at::matmul(kept(b, in, weights).transpose(-2, -1), g).sum(2);  // over the group
  const at::Tensor of_weights = kept(b, in, at::matmul(g, in.value.transpose(-2, -1)));
  const at::Tensor along_out = (g * o).sum(-1, /*keepdim=*/true);
  const at::Tensor of_scores = weights * (of_weights - along_out) * b.scale;
  return {at::matmul(of_scores, in.key).flatten(1, 2),
          at::matmul(of_scores.transpose(-2, -1), in.query).sum(2), of_value};
}

}  // namespace

AttentionKernel attention_kernel(at::Device device, at::ScalarType dtype, std::int64_t head_size,
                                 std::int64_t value_size, bool dropout) {
  AttentionKernel by_blocks{block_forward, block_backward, kBlockQueries, kBlockKeys};
  if (dropout) return by_blocks;
  if (device.is_cpu() && head_size == value_size) return {cpu_forward, cpu_backward};
  const bool is_efficient =
      device.is_cuda() &&
      context::efficient_kernel_agrees(by_blocks, device, dtype, head_size, value_size);
  return is_efficient ? context::efficient_kernel() : by_blocks;
}

}  // namespace intarsia
