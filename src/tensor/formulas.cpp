// Formulas of ATen that write into a plain tensor, in a form that stays distributed.
#include "tensor/formulas.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "tensor/impl.h"

namespace intarsia {
namespace {

/// The gradient of max(dim), sort, topk and their like: it goes where the values came from.
at::Tensor value_selecting_reduction_backward(const at::Tensor& grad, std::int64_t dim,
                                              const at::Tensor& indices, c10::SymIntArrayRef sizes,
                                              bool keepdim) {
  const bool widen = !keepdim && !sizes.empty();
  const at::Tensor g = widen ? grad.unsqueeze(dim) : grad;
  const at::Tensor i = widen ? indices.unsqueeze(dim) : indices;
  return g.new_zeros_symint(sizes).scatter(dim, i, g);
}

/// Compares with every class instead of writing into zeros.
at::Tensor one_hot(const at::Tensor& self, std::int64_t num_classes) {
  TORCH_CHECK(self.scalar_type() == at::kLong, "one_hot is only applicable to index tensor.");
  if (num_classes == -1) num_classes = self.max().item<std::int64_t>() + 1;
  TORCH_CHECK(num_classes > 0, "Class values must be non-negative, and there must be some.");
  const at::Tensor classes =
      at::arange(num_classes, at::TensorOptions(at::kLong).device(self.device()));
  return self.unsqueeze(-1).eq(classes).to(at::kLong);
}

}  // namespace

void register_formulas() {
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse3, __FILE__, __LINE__);
  library->impl("one_hot", one_hot);
  library->impl("value_selecting_reduction_backward", value_selecting_reduction_backward);
}

}  // namespace intarsia
