// Formulas of ATen that write into a plain tensor, or send much, in a form that stays distributed.
#include "tensor/formulas.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>
#include <numeric>

#include "intarsia/tensor.h"
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

/// Whole numbers that an op needs to know: a small tensor, read on every rank.
std::vector<std::int64_t> numbers(const at::Tensor& t) {
  const at::Tensor whole =
      (is_ours(t) ? full(t.detach()) : t.detach()).to(at::kCPU, at::kLong).contiguous();
  const auto* first = whole.const_data_ptr<std::int64_t>();
  return {first, first + whole.numel()};
}

std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& where,
                                     std::int64_t dim) {
  const auto places = numbers(where);
  if (where.dim() == 0) return at::tensor_split(self, places[0], dim);
  return at::tensor_split(self, at::IntArrayRef(places), dim);
}

at::Tensor ctc_loss(const at::Tensor& log_probs, const at::Tensor& targets,
                    const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                    std::int64_t blank, std::int64_t reduction, bool zero_infinity) {
  return at::ctc_loss(log_probs, targets, at::IntArrayRef(numbers(input_lengths)),
                      at::IntArrayRef(numbers(target_lengths)), blank, reduction, zero_infinity);
}

/// By the norm, whose gradient needs one number for each row, where that of a mean of squares would
/// be terms of all elements. Complex numbers are squared as they are, which gives no norm.
at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(normalized_shape);
  TORCH_CHECK(!sizes.empty() && input.dim() >= static_cast<std::int64_t>(sizes.size()) &&
                  input.sizes().slice(input.sizes().size() - sizes.size()) == sizes,
              "rms_norm: an input of sizes ", input.sizes(), " does not end in normalized_shape ",
              sizes);
  TORCH_CHECK(!weight || !weight->defined() || weight->sizes() == sizes,
              "rms_norm: weight has sizes ", weight->sizes(), " instead of ", sizes);
  const at::ScalarType type = input.scalar_type();
  const bool half = type == at::kHalf || type == at::kBFloat16;
  const at::Tensor x = half ? input.to(at::kFloat) : input;
  std::vector<std::int64_t> dims(sizes.size());
  std::iota(dims.begin(), dims.end(), input.dim() - static_cast<std::int64_t>(sizes.size()));
  const bool is_double = at::toRealValueType(x.scalar_type()) == at::kDouble;
  const double least =
      is_double ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  const auto count = static_cast<double>(c10::multiply_integers(sizes));
  const at::Tensor mean_square = x.is_complex()
                                     ? x.square().mean(dims, true)
                                     : at::linalg_vector_norm(x, 2, dims, true).square().div(count);
  const at::Tensor out = x * mean_square.add(eps.value_or(least)).rsqrt();
  return (weight && weight->defined() ? out * *weight : out).to(type);
}

}  // namespace

void register_formulas() {
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse3, __FILE__, __LINE__);
  library->impl("ctc_loss.Tensor", ctc_loss);
  library->impl("one_hot", one_hot);
  library->impl("rms_norm", rms_norm);
  library->impl("tensor_split.tensor_indices_or_sections", tensor_split);
  library->impl("value_selecting_reduction_backward", value_selecting_reduction_backward);
}

}  // namespace intarsia
