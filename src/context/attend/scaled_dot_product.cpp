// torch's scaled_dot_product_attention on sequences that are sharded.
#include <ATen/ATen.h>
#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "base/text.h"
#include "context/attend/mask_tensors.h"
#include "context/attend/order_check.h"
#include "intarsia/attention.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/call/call_check.h"
#include "tensor/core/impl.h"
#include "tensor/core/translating.h"

namespace intarsia {

namespace {

constexpr std::string_view kWhere = "scaled_dot_product_attention";

thread_local const DescribedAttention* t_scope = nullptr;
// Whether this process ever had one: then what is computed again in backward may have been in it.
std::atomic<bool> g_had_scope = false;

/// Checkpointing calls a function again in backward, after the scope around forward has ended.
void check_not_computed_again() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || !g_had_scope.load(std::memory_order_relaxed)) return;
  fail<ValueError>(kWhere, "it is called inside of ", node->name(),
                   " in backward, where what was computed before is computed again, and no scope "
                   "says its mask; enter the attention scope inside of what is checkpointed, or "
                   "hand the mask on as a tensor (mask_tensor)");
}

/// Whether some axis shards the sequence of one of the tensors.
bool is_sequence_sharded(std::initializer_list<const at::Tensor*> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor* t) {
    return is_ours(*t) && t->dim() >= 2 &&
           !layout_in_use(*t).axes_of(static_cast<int>(t->dim()) - 2).empty();
  });
}

at::Tensor on_sharded(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                      std::optional<double> scale, bool enable_gqa) {
  const bool has_mask = mask && mask->defined();
  std::optional<DescribedAttention> described =
      described_attention(has_mask ? *mask : at::Tensor());
  if (described && has_mask && mask->scalar_type() != at::kByte) {
    fail<ValueError>(kWhere, "attn_mask is ", describe(*mask),
                     " inside of a scope that describes the mask; pass one of the two");
  }
  if (!enable_gqa && key.size(1) != query.size(1) && key.size(1) != 1) {
    fail<ValueError>(kWhere, "queries have ", query.size(1), " heads and keys ", key.size(1),
                     "; say enable_gqa=True if they share them");
  }
  if (!described) {
    described.emplace();
    described->mask = has_mask    ? mask_of(*mask)
                      : is_causal ? AttentionMask::causal()
                                  : AttentionMask::all();
  }
  AttentionOptions& options = described->options;
  if (scale) options.scale = scale;
  if (dropout > 0) options.dropout = dropout;
  return attention(query, key, value, described->mask, options);
}

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value,
                                        const std::optional<at::Tensor>& mask, double dropout,
                                        bool is_causal, std::optional<double> scale,
                                        bool enable_gqa) {
  const bool have_heads = query.dim() == 4 && key.dim() == 4 && value.dim() == 4;
  const bool have_none = query.dim() == 3 && key.dim() == 3 && value.dim() == 3;
  const bool is_described = mask && mask->defined() && mask->scalar_type() == at::kByte;
  const bool is_here =
      t_scope != nullptr || is_described || is_sequence_sharded({&query, &key, &value});
  if (!is_here || !(have_heads || have_none)) {
    return at::compositeimplicitautograd::scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal, scale, enable_gqa);
  }
  at::Tensor out;
  translating([&] {
    const auto with_heads = [&](const at::Tensor& t) { return have_none ? t.unsqueeze(1) : t; };
    out = on_sharded(with_heads(query), with_heads(key), with_heads(value), mask, dropout,
                     is_causal, scale, enable_gqa);
  });
  return have_none ? out.squeeze(1) : out;
}

}  // namespace

std::optional<DescribedAttention> described_attention(const at::Tensor& mask) {
  if (mask.defined()) {
    if (auto described = context::description_in(mask)) return described;
  }
  if (t_scope != nullptr) return *t_scope;
  if (!mask.defined()) check_not_computed_again();
  return std::nullopt;
}

struct AttentionScope::Inside {
  DescribedAttention scope;
  const DescribedAttention* outside;
  std::optional<CallCheck> in_order;
};

AttentionScope::AttentionScope(AttentionMask mask, AttentionOptions options)
    : inside_(new Inside{{std::move(mask), std::move(options)}, t_scope, {}}) {
  const SequenceOrder& order = inside_->scope.options.order;
  if (!order.is_contiguous()) {
    inside_->in_order.emplace([&order](const Frame& call) { context::check_order(order, call); });
  }
  t_scope = &inside_->scope;
  g_had_scope = true;
}

AttentionScope::~AttentionScope() { t_scope = inside_->outside; }

}  // namespace intarsia

TORCH_LIBRARY_IMPL(aten, PrivateUse3, m) {
  m.impl("scaled_dot_product_attention", intarsia::scaled_dot_product_attention);
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse3, m) {
  m.impl("scaled_dot_product_attention", intarsia::scaled_dot_product_attention);
}
