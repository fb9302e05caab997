#include "tensor/dispatch/leaf_hook.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <typeinfo>

#include "intarsia/tensor.h"
#include "tensor/move/relayout.h"

namespace intarsia {
namespace {

using torch::autograd::variable_list;

/// The gradient of a leaf in the leaf's layout. The leaf outlives its hook, and may be laid out
/// anew: so it is asked each time.
at::Tensor laid_out(DistributedImpl& leaf, const at::Tensor& grad) {
  const Layout layout = without_partial(leaf.spec()->layout);
  const bool elsewhere =
      leaf.extra() && leaf.extra()->on_use && leaf.extra()->on_use->takes_gradients;
  if (elsewhere || !grad.defined()) return grad;
  if (!is_ours(grad)) return distribute(grad, layout, leaf.world());
  if (impl_of(grad).spec()->layout == layout) return grad;
  if (leaf.extra() && leaf.extra()->keeps_gradient) return grad;
  if (!grad.requires_grad()) return relaid(grad, layout, {.op = "gradient", .implicit = false});
  return redistribute(grad, layout);
}

/// The hook that does so.
class LayOutGradient final : public torch::autograd::FunctionPreHook {
 public:
  explicit LayOutGradient(DistributedImpl& leaf) : leaf_(leaf) {}
  variable_list operator()(const variable_list& grads) override {
    return {laid_out(leaf_, grads[0])};
  }
  static bool lays_out(const torch::autograd::FunctionPreHook& hook, const DistributedImpl& leaf) {
    return typeid(hook) == typeid(LayOutGradient) &&
           &static_cast<const LayOutGradient&>(hook).leaf_ == &leaf;
  }

 private:
  DistributedImpl& leaf_;
};

}  // namespace

void attach_leaf_hook(const at::Tensor& tensor) {
  if (!tensor.requires_grad() || !tensor.is_leaf()) return;
  DistributedImpl& impl = impl_of(tensor);
  // Adding the first hook of Python, or the first of C++, drops all others: so ours is looked for
  // each time, and put last. By its type: another object may have the address of one that is gone.
  auto& hooks = torch::autograd::impl::hooks(tensor);
  if (!hooks.empty() && LayOutGradient::lays_out(*hooks.back(), impl)) return;
  // Views made without grad mode look like leaves. Other leaves count there too: that is where
  // autograd functions of users have their forward.
  if (!at::GradMode::is_enabled() && tensor.is_view()) return;
  hooks.push_back(std::make_unique<LayOutGradient>(impl));
}

void keep_gradient_layout(const at::Tensor& tensor) {
  if (is_ours(tensor)) attach_leaf_hook(tensor);
}

}  // namespace intarsia
