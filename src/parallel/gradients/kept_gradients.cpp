#include "parallel/gradients/kept_gradients.h"

#include <ATen/ATen.h>

#include <utility>

#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "tensor/core/impl.h"

namespace intarsia {
namespace {

bool is_kept(const at::Tensor& leaf) {
  if (!is_ours(leaf) || !leaf.requires_grad() || !leaf.is_leaf()) return false;
  const auto& extra = impl_of(leaf).extra();
  return !extra || !extra->on_use || !extra->on_use->takes_gradients;
}

}  // namespace

KeptGradients::KeptGradients(const std::vector<at::Tensor>& leaves) {
  for (at::Tensor leaf : leaves) {
    if (is_kept(leaf)) kept_.push_back({leaf, std::exchange(leaf.mutable_grad(), {})});
  }
  keep(true);
}

void KeptGradients::keep(bool on) {
  for (const Kept& each : kept_) impl_of(each.leaf).need_extra().keeps_gradient = on;
}

KeptGradients::~KeptGradients() {
  keep(false);
  for (Kept& each : kept_) each.leaf.mutable_grad() = each.before;
}

void KeptGradients::reduce() {
  const at::NoGradGuard no_grad;
  keep(false);
  std::vector<at::Tensor> moved;
  std::vector<Layout> layouts;
  std::vector<Kept*> owners;
  for (Kept& each : kept_) {
    const at::Tensor& gradient = each.leaf.grad();
    const Layout layout = without_partial(layout_of(each.leaf));
    if (!gradient.defined() || layout_of(gradient) == layout) continue;
    moved.push_back(gradient);
    layouts.push_back(layout);
    owners.push_back(&each);
  }
  if (!moved.empty()) {
    const std::vector<at::Tensor> laid_out = redistribute_together(moved, layouts);
    for (std::size_t i = 0; i < owners.size(); ++i) {
      owners[i]->leaf.mutable_grad() = laid_out[i];
    }
  }
  for (Kept& each : kept_) {
    at::Tensor& gradient = each.leaf.mutable_grad();
    if (!each.before.defined()) continue;
    if (gradient.defined()) {
      gradient = each.before.add_(gradient);
    } else {
      gradient = std::move(each.before);
    }
  }
  kept_.clear();
}

}  // namespace intarsia
