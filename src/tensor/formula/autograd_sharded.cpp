// Embedding and cross entropy whose vocabulary is sharded: gradients that know the layout send less
// than those that ATen composes.
#include <ATen/ATen.h>
#include <ATen/CompositeImplicitAutogradFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "intarsia/tensor.h"
#include "rules/formulas.h"
#include "tensor/core/impl.h"
#include "tensor/formula/autograd_formulas.h"

namespace intarsia {
namespace {

/// Whether some axis shards a dimension of a distributed tensor, in the layout in which ops use it.
bool sharded_in_use(const at::Tensor& t, std::int64_t dim) {
  return is_ours(t) && !layout_in_use(t).axes_of(static_cast<int>(dim)).empty();
}

/// Cross entropy whose classes, dimension 1, are sharded: its gradient needs no reduction, for the
/// gradients of a sample's classes add up to 0 whatever they are.
class ShardedCrossEntropy : public torch::autograd::Function<ShardedCrossEntropy> {
 public:
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& self, const at::Tensor& target,
                            const std::optional<at::Tensor>& weight, std::int64_t reduction,
                            std::int64_t ignore_index) {
    const at::Tensor logs = self.log_softmax(1);
    const bool image = self.dim() > 2;
    const auto [loss, total] =
        image ? at::nll_loss2d_forward(logs, target, weight, reduction, ignore_index)
              : at::nll_loss_forward(logs, target, weight, reduction, ignore_index);
    context->set_materialize_grads(false);
    context->save_for_backward({self, target, weight.value_or(at::Tensor()), logs, total});
    context->saved_data["reduction"] = reduction;
    context->saved_data["ignore_index"] = ignore_index;
    return loss;
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}, {}, {}};
    const auto saved = context->get_saved_variables();
    const at::Tensor& self = saved[0];
    const std::int64_t reduction = context->saved_data["reduction"].toInt();
    const std::int64_t ignore_index = context->saved_data["ignore_index"].toInt();
    // Where this is differentiated again, what was saved does not know where it came from.
    const at::Tensor logs = at::GradMode::is_enabled() ? self.log_softmax(1) : saved[3];
    const rules::Targets targets(saved[1], saved[2], ignore_index, logs.scalar_type());
    const at::Tensor each = targets.gradients(grads[0], reduction, saved[4]).unsqueeze(1);
    const at::Tensor grad =
        (logs.exp() * each).scatter_add(1, targets.classes.unsqueeze(1), each.neg());
    return {grad, {}, {}, {}, {}};
  }
};

at::Tensor cross_entropy_loss(const at::Tensor& self, const at::Tensor& target,
                              const std::optional<at::Tensor>& weight, std::int64_t reduction,
                              c10::SymInt ignore_index, double label_smoothing) {
  const bool by_class =
      !target.is_floating_point() && label_smoothing == 0 && (self.dim() == 2 || self.dim() == 4);
  if (!by_class || !sharded_in_use(self, 1)) {
    return at::compositeimplicitautograd::cross_entropy_loss_symint(self, target, weight, reduction,
                                                                    ignore_index, label_smoothing);
  }
  return ShardedCrossEntropy::apply(self, target, weight, reduction, ignore_index.expect_int());
}

/// A lookup in a table of which each rank has some rows: so has its gradient, from the start.
class ShardedEmbedding : public torch::autograd::Function<ShardedEmbedding> {
 public:
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& table, const at::Tensor& indices,
                            std::int64_t padding_idx) {
    context->set_materialize_grads(false);
    context->save_for_backward({indices});
    context->saved_data["padding"] = padding_idx;
    // Its layout is all that is needed; a write to it in between does not matter.
    context->saved_data["table"] = table.detach();
    const at::AutoDispatchBelowADInplaceOrView below;  // not this function again
    return at::embedding(table, indices, padding_idx);
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 torch::autograd::variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}};
    const at::Tensor indices = context->get_saved_variables()[0];
    const std::int64_t padding = context->saved_data["padding"].toInt();
    at::Tensor grad = grads[0];
    if (padding >= 0) grad = grad.masked_fill(indices.eq(padding).unsqueeze(-1), 0);
    const at::Tensor table = context->saved_data["table"].toTensor();
    const at::Tensor none = zeros(table.sizes(), layout_in_use(table), impl_of(table).world(),
                                  at::TensorOptions().dtype(table.scalar_type()));
    return {none.index_put({indices}, grad, /*accumulate=*/true), {}, {}};
  }
};

at::Tensor embedding(const at::Tensor& table, const at::Tensor& indices, c10::SymInt padding_idx,
                     bool scale_grad_by_freq, bool sparse) {
  if (sharded_in_use(table, 0) && !scale_grad_by_freq && !sparse) {
    return ShardedEmbedding::apply(table, indices, padding_idx.expect_int());
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::embedding", "");
  torch::jit::Stack stack{table, indices, padding_idx, scale_grad_by_freq, sparse};
  op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, stack);  // ATen's own
  return stack[0].toTensor();
}

}  // namespace

void register_vocabulary(torch::Library& library) {
  library.impl("cross_entropy_loss", cross_entropy_loss);
  library.impl("embedding", embedding);
}

}  // namespace intarsia
