// Ops of ATen that are composed of others here, with and without autograd: those that read memory
// of their operands, or for which ATen has a quick way of its own that would gather them.
#include "tensor/formula/composed.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/core/impl.h"
#include "tensor/core/translating.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using Stack = torch::jit::Stack;

// ---- scaled gradients ------------------------------------------------------------------------

/// Whether some gradient is not finite is one number for all ranks, and one reduction.
void check_and_unscale(at::TensorList gradients, at::Tensor& found_inf,
                       const at::Tensor& inv_scale) {
  const FormulaScope scope("aten::_amp_foreach_non_finite_check_and_unscale_");
  std::vector<at::Tensor> finite;
  for (const at::Tensor& g : gradients) finite.push_back(g.isfinite().all());
  if (finite.empty()) return;
  const at::Tensor found = at::stack(finite).all().logical_not().to(found_inf.scalar_type());
  found_inf.copy_(at::maximum(found_inf, found));
  at::_foreach_mul_(gradients, inv_scale);
}

// ---- attention -------------------------------------------------------------------------------

/// The mask in the form that is added to the scores [batch, heads, query, key]. Its sizes by
/// `type`: 0: [query, key]; 1: [batch, key]; 2: all four.
at::Tensor additive_mask(const at::Tensor& mask, std::optional<std::int64_t> type,
                         const at::Tensor& query) {
  at::Tensor added = mask;
  if (!at::isFloatingType(mask.scalar_type())) {
    const at::Tensor zeros = at::zeros_like(mask, query.scalar_type());
    added = zeros.masked_fill(mask.to(at::kBool), -INFINITY);
  }
  return type == 1 ? added.unsqueeze(1).unsqueeze(1) : added;
}

std::tuple<at::Tensor, at::Tensor> multi_head_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, std::int64_t embed_dim,
    std::int64_t heads, const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
    const at::Tensor& proj_weight, const at::Tensor& proj_bias,
    const std::optional<at::Tensor>& mask, bool need_weights, bool average_weights,
    std::optional<std::int64_t> mask_type) {
  std::vector<at::Tensor> qkv;
  if (query.is_same(key) && key.is_same(value)) {
    qkv = at::linear(query, qkv_weight, qkv_bias).chunk(3, -1);
  } else {
    const auto weights = qkv_weight.chunk(3);
    const auto biases = qkv_bias.chunk(3);
    const std::array<const at::Tensor*, 3> in{&query, &key, &value};
    for (std::size_t i = 0; i < 3; ++i) qkv.push_back(at::linear(*in[i], weights[i], biases[i]));
  }
  for (at::Tensor& t : qkv) {
    t = t.reshape({t.size(0), t.size(1), heads, embed_dim / heads}).transpose(1, 2);
  }
  const auto added = mask && mask->defined()
                         ? std::optional(additive_mask(*mask, mask_type, qkv[0]))
                         : std::nullopt;
  at::Tensor weights;
  at::Tensor out;
  if (need_weights) {
    const double scale = 1 / std::sqrt(static_cast<double>(embed_dim / heads));
    const at::Tensor scores = (qkv[0] * scale).matmul(qkv[1].transpose(-2, -1));
    weights = (added ? scores + *added : scores).softmax(-1);
    out = weights.matmul(qkv[2]);
    if (average_weights) weights = weights.mean(1);
  } else {
    out = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], added);
  }
  out = out.transpose(1, 2).reshape({query.size(0), query.size(1), embed_dim});
  return {at::linear(out, proj_weight, proj_bias), weights};
}

at::Tensor transformer_encoder_layer(
    const at::Tensor& src, std::int64_t embed_dim, std::int64_t heads, const at::Tensor& qkv_weight,
    const at::Tensor& qkv_bias, const at::Tensor& proj_weight, const at::Tensor& proj_bias,
    bool use_gelu, bool norm_first, double eps, const at::Tensor& norm_weight_1,
    const at::Tensor& norm_bias_1, const at::Tensor& norm_weight_2, const at::Tensor& norm_bias_2,
    const at::Tensor& ffn_weight_1, const at::Tensor& ffn_bias_1, const at::Tensor& ffn_weight_2,
    const at::Tensor& ffn_bias_2, const std::optional<at::Tensor>& mask,
    std::optional<std::int64_t> mask_type) {
  const std::vector<std::int64_t> last{embed_dim};
  const auto norm_1 = [&](const at::Tensor& x) {
    return at::layer_norm(x, last, norm_weight_1, norm_bias_1, eps);
  };
  const auto norm_2 = [&](const at::Tensor& x) {
    return at::layer_norm(x, last, norm_weight_2, norm_bias_2, eps);
  };
  const auto attend = [&](const at::Tensor& x) {
    return std::get<0>(multi_head_attention(x, x, x, embed_dim, heads, qkv_weight, qkv_bias,
                                            proj_weight, proj_bias, mask, false, true, mask_type));
  };
  const auto feed_forward = [&](const at::Tensor& x) {
    const at::Tensor inner = at::linear(x, ffn_weight_1, ffn_bias_1);
    return at::linear(use_gelu ? at::gelu(inner) : at::relu(inner), ffn_weight_2, ffn_bias_2);
  };
  if (norm_first) {
    const at::Tensor x = src + attend(norm_1(src));
    return x + feed_forward(norm_2(x));
  }
  const at::Tensor x = norm_1(src + attend(src));
  return norm_2(x + feed_forward(x));
}

at::Tensor nested_tensor_from_mask(const at::Tensor& t, const at::Tensor& mask, bool) {
  translating([&] {
    fail<UnsupportedError>("aten::_nested_tensor_from_mask",
                           "nested tensors have no layout: ", describe(t), "; ", describe(mask),
                           "; keep it padded and pass the mask on: "
                           "TransformerEncoder(..., enable_nested_tensor=False)");
  });
  return {};
}

// ---- pools -----------------------------------------------------------------------------------

/// Also without gradients, for which ATen has a loop over memory whose result is contiguous.
at::Tensor max_pool1d(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                      at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const at::Tensor out = std::get<0>(
      at::max_pool1d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode));
  const bool by_loop =
      self.device().is_cpu() && !(self.requires_grad() && at::GradMode::is_enabled());
  return by_loop ? out.contiguous() : out;
}

// ---- packed sequences ------------------------------------------------------------------------

/// Runs what ATen composes, with the lengths of sequences as plain tensors: it reads their memory.
void run_with_plain_lengths(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t base = stack->size() - arguments.size();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "batch_sizes" && arguments[i].name() != "lengths") continue;
    c10::IValue& value = (*stack)[base + i];
    if (value.isTensor() && is_ours(value.toTensor())) {
      translating([&] { value = full(value.toTensor().detach()); });
    }
  }
  const bool implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  op.callBoxedForDispatchKey(implicit ? c10::DispatchKey::CompositeImplicitAutograd
                                      : c10::DispatchKey::CompositeExplicitAutograd,
                             *stack);
}

// Composed of others also for ATen, so that autograd does not act before.
constexpr std::array<const char*, 6> kPacked{"_pack_padded_sequence_backward",
                                             "_pad_packed_sequence",
                                             "gru.data",
                                             "lstm.data",
                                             "rnn_relu.data",
                                             "rnn_tanh.data"};

constexpr std::array<std::string_view, 5> kWithKernel{
    "aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_native_multi_head_attention",
    "aten::_nested_tensor_from_mask", "aten::_pack_padded_sequence",
    "aten::_transformer_encoder_layer_fwd"};

torch::CppFunction with_plain_lengths() {
  return torch::CppFunction::makeFromBoxedFunction<&run_with_plain_lengths>();
}

}  // namespace

bool is_composed(const c10::OperatorName& name) {
  return name.overload_name.empty() &&
         std::find(kWithKernel.begin(), kWithKernel.end(), name.name) != kWithKernel.end();
}

void register_composed() {
  static auto* const below =
      new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  static auto* const autograd = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse3, __FILE__, __LINE__);
  below->impl("_amp_foreach_non_finite_check_and_unscale_", check_and_unscale);
  below->impl("_native_multi_head_attention", multi_head_attention);
  below->impl("_nested_tensor_from_mask", nested_tensor_from_mask);
  below->impl("_pack_padded_sequence", with_plain_lengths());
  below->impl("_transformer_encoder_layer_fwd", transformer_encoder_layer);
  for (torch::Library* library : {below, autograd}) {
    library->impl("max_pool1d", max_pool1d);
    for (const char* name : kPacked) library->impl(name, with_plain_lengths());
  }
}

}  // namespace intarsia
