#include "context/attend/device_kernels.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace intarsia::context {
namespace {

// What the op asks of its operands: logsumexps in rows of 32, masks in rows of 16.
constexpr std::int64_t kSums = 32;
constexpr std::int64_t kMasks = 16;

std::int64_t missing_to(std::int64_t multiple, std::int64_t size) {
  return (multiple - size % multiple) % multiple;
}

/// Keys or values for every head of the queries.
at::Tensor for_heads(const at::Tensor& t, std::int64_t heads) {
  const std::int64_t group = heads / t.size(1);
  if (group == 1) return t;
  return t.unsqueeze(2).expand({-1, -1, group, -1, -1}).flatten(1, 2);
}

at::Tensor over_groups(const at::Tensor& grad, std::int64_t key_heads) {
  if (grad.size(1) == key_heads) return grad;
  return grad.unflatten(1, {key_heads, grad.size(1) / key_heads}).sum(2);
}

at::Tensor bias_of(const AttentionBlock& b) {
  if (!b.bias.defined()) return {};
  const std::int64_t keys = b.key.size(2);
  const at::Tensor rows =
      at::constant_pad_nd(b.bias.to(b.query.scalar_type()), {0, missing_to(kMasks, keys)});
  return rows.narrow(-1, 0, keys).expand({b.query.size(0), b.query.size(1), b.query.size(2), keys});
}

std::pair<at::Tensor, at::Tensor> efficient_forward(const AttentionBlock& b) {
  const std::int64_t heads = b.query.size(1);
  const at::Tensor bias = bias_of(b);
  const auto [out, sums, seed, offset] = at::_scaled_dot_product_efficient_attention(
      b.query, for_heads(b.key, heads), for_heads(b.value, heads),
      bias.defined() ? std::optional(bias) : std::nullopt, /*compute_log_sumexp=*/true, 0.0,
      b.causal, b.scale);
  return {out, sums.narrow(2, 0, b.query.size(2))};
}

std::array<at::Tensor, 3> efficient_backward(const AttentionBlock& b, const at::Tensor& grad,
                                             const at::Tensor& out, const at::Tensor& logsumexp) {
  const std::int64_t heads = b.query.size(1);
  const at::Tensor sums =
      at::constant_pad_nd(logsumexp, {0, missing_to(kSums, logsumexp.size(2))}, INFINITY);
  const at::Tensor none = at::zeros({}, at::kLong);  // state of a generator, for dropout
  const auto [q, k, v, unused] = at::_scaled_dot_product_efficient_attention_backward(
      grad, b.query, for_heads(b.key, heads), for_heads(b.value, heads), bias_of(b), out, sums,
      none, none, 0.0, {true, true, true, false}, b.causal, b.scale);
  return {q, over_groups(k, b.key.size(1)), over_groups(v, b.value.size(1))};
}

// ---- the comparison --------------------------------------------------------------------------

/// Blocks whose sizes are multiples of nothing: all seen, causal, and with a mask.
std::vector<AttentionBlock> samples(const at::TensorOptions& options, std::int64_t head_size,
                                    std::int64_t value_size) {
  constexpr std::int64_t kQueries = 37;
  constexpr std::int64_t kKeys = 45;
  const auto made = [&](std::int64_t heads, std::int64_t length, std::int64_t size, double step) {
    const at::Tensor numbers = at::arange(heads * length * size, at::kDouble);
    return numbers.mul(step).sin().view({1, heads, length, size}).to(options);
  };
  AttentionBlock all{.query = made(4, kQueries, head_size, 0.7),
                     .key = made(2, kKeys, head_size, 1.1),
                     .value = made(2, kKeys, value_size, 1.9),
                     .scale = 1 / std::sqrt(static_cast<double>(head_size))};
  AttentionBlock causal = all;
  causal.key = all.key.narrow(2, 0, kQueries);
  causal.value = all.value.narrow(2, 0, kQueries);
  causal.causal = true;
  AttentionBlock masked = all;
  const at::Tensor hidden = at::ones({kQueries, kKeys}, options.dtype(at::kBool)).triu(9);
  masked.bias =
      at::zeros({kQueries, kKeys}, options.dtype(at::kFloat)).masked_fill_(hidden, -INFINITY);
  return {all, causal, masked};
}

bool is_near(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  // Products, weights and results are rounded to the dtype, each of them once.
  constexpr double kRoundings = 16;
  const double epsilon = dtype == at::kHalf       ? std::ldexp(1.0, -10)
                         : dtype == at::kBFloat16 ? std::ldexp(1.0, -7)
                                                  : std::numeric_limits<float>::epsilon();
  const at::Tensor theirs = b.to(at::kDouble);
  const at::Tensor difference = (a.to(at::kDouble) - theirs).abs().max();
  return difference.item<double>() <= kRoundings * epsilon * theirs.abs().max().item<double>();
}

bool agree_on(const AttentionBlock& block, const AttentionKernel& kernel,
              const AttentionKernel& with, at::ScalarType dtype) {
  const auto [out, sums] = kernel.forward(block);
  const auto [other_out, other_sums] = with.forward(block);
  if (!is_near(out, other_out, dtype) || !is_near(sums, other_sums, dtype)) return false;
  const at::Tensor grad = other_out.to(dtype).cos();
  const auto grads = kernel.backward(block, grad, other_out.to(dtype), other_sums);
  const auto others = with.backward(block, grad, other_out.to(dtype), other_sums);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!is_near(grads[i], others[i], dtype)) return false;
  }
  return true;
}

}  // namespace

AttentionKernel efficient_kernel() { return {efficient_forward, efficient_backward}; }

bool agrees(const AttentionKernel& kernel, const AttentionKernel& with, at::Device device,
            at::ScalarType dtype, std::int64_t head_size, std::int64_t value_size) {
  try {
    for (const AttentionBlock& block :
         samples(at::TensorOptions(device).dtype(dtype), head_size, value_size)) {
      if (!agree_on(block, kernel, with, dtype)) return false;
    }
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

bool efficient_kernel_agrees(const AttentionKernel& with, at::Device device, at::ScalarType dtype,
                             std::int64_t head_size, std::int64_t value_size) {
  using Key = std::tuple<std::string, at::ScalarType, std::int64_t, std::int64_t>;
  static std::mutex mutex;
  static std::map<Key, bool> found;  // a handful
  const Key key{device.str(), dtype, head_size, value_size};
  const std::scoped_lock lock(mutex);
  const auto known = found.find(key);
  if (known != found.end()) return known->second;
  const bool agree = agrees(efficient_kernel(), with, device, dtype, head_size, value_size);
  return found.emplace(key, agree).first->second;
}

}  // namespace intarsia::context
