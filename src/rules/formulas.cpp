#include "rules/formulas.h"

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

namespace intarsia::rules {

at::ScalarType wide(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

at::Tensor widened(const at::Tensor& t) { return t.to(wide(t.scalar_type())); }

// ---- softmax ---------------------------------------------------------------------------------

at::Tensor softmax_formula(const at::Tensor& self, std::int64_t dim, bool half_to_float) {
  const at::Tensor x = widened(self);
  const at::Tensor e = (x - x.amax(dim, true)).exp();
  const at::Tensor out = e / e.sum(dim, true);
  return half_to_float ? out : out.to(self.scalar_type());
}

at::Tensor safe_softmax_formula(const at::Tensor& self, std::int64_t dim,
                                std::optional<at::ScalarType> dtype) {
  const at::Tensor x = widened(dtype ? self.to(*dtype) : self);
  const at::Tensor most = x.amax(dim, true);
  const at::Tensor masked = most.eq(-INFINITY);  // rows without any element that counts are 0
  const at::Tensor e = (x - most.masked_fill(masked, 0)).exp();
  const at::Tensor out = e / e.sum(dim, true).masked_fill(masked, 1);
  return out.to(dtype.value_or(self.scalar_type()));
}

at::Tensor log_softmax_formula(const at::Tensor& self, std::int64_t dim, bool half_to_float) {
  const at::Tensor x = widened(self);
  const at::Tensor shifted = x - x.amax(dim, true);
  const at::Tensor out = shifted - shifted.exp().sum(dim, true).log();
  return half_to_float ? out : out.to(self.scalar_type());
}

at::Tensor softmax_backward_formula(const at::Tensor& grad, const at::Tensor& output,
                                    std::int64_t dim, at::ScalarType input_dtype) {
  const at::Tensor y = widened(output);
  const at::Tensor weighted = widened(grad) * y;
  return (weighted - y * weighted.sum(dim, true)).to(input_dtype);
}

at::Tensor log_softmax_backward_formula(const at::Tensor& grad, const at::Tensor& output,
                                        std::int64_t dim, at::ScalarType input_dtype) {
  const at::Tensor g = widened(grad);
  return (g - widened(output).exp() * g.sum(dim, true)).to(input_dtype);
}

at::Tensor logsumexp_formula(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  const at::Tensor x = integral ? self.to(at::get_default_dtype_as_scalartype()) : widened(self);
  const at::Tensor most = x.amax(dim, true);
  // An infinite maximum must not be subtracted from itself.
  const at::Tensor shift = most.masked_fill(most.abs().eq(INFINITY), 0);
  const at::Tensor sum = (x - shift).exp().sum(dim, true).log() + shift;
  const at::Tensor out = keepdim ? sum : sum.sum(dim);  // they are all of size 1 by now
  return integral ? out : out.to(self.scalar_type());
}

// ---- losses over classes ---------------------------------------------------------------------

namespace {

std::int64_t class_dim(const at::Tensor& self) { return self.dim() == 1 ? 0 : 1; }

}  // namespace

Targets::Targets(const at::Tensor& target, const std::optional<at::Tensor>& weight,
                 std::int64_t ignore_index, at::ScalarType type)
    : ignored(target.eq(ignore_index)), classes(target.masked_fill(ignored, 0)) {
  weights = weight && weight->defined() ? weight->index({classes}).to(type).masked_fill(ignored, 0)
                                        : ignored.logical_not().to(type);
}

at::Tensor Targets::gradients(const at::Tensor& grad, std::int64_t reduction,
                              const at::Tensor& total_weight) const {
  const at::Tensor each = grad * weights;
  if (reduction != at::Reduction::Mean) return each;
  // Where all are ignored there is no weight to divide by, and still no gradient.
  return (each / total_weight).masked_fill(ignored, 0);
}

std::tuple<at::Tensor, at::Tensor> nll_loss_formula(const at::Tensor& self,
                                                    const at::Tensor& target,
                                                    const std::optional<at::Tensor>& weight,
                                                    std::int64_t reduction,
                                                    std::int64_t ignore_index) {
  const std::int64_t dim = class_dim(self);
  const Targets t(target, weight, ignore_index, self.scalar_type());
  const at::Tensor picked = self.gather(dim, t.classes.unsqueeze(dim)).squeeze(dim);
  const at::Tensor losses = (picked * t.weights).neg();
  if (reduction == at::Reduction::None) {
    return {losses, t.weights.new_zeros({})};
  }
  const at::Tensor total = t.weights.sum();
  const at::Tensor sum = losses.sum();
  return {reduction == at::Reduction::Mean ? sum / total : sum, total};
}

at::Tensor nll_loss_backward_formula(const at::Tensor& grad, const at::Tensor& self,
                                     const at::Tensor& target,
                                     const std::optional<at::Tensor>& weight,
                                     std::int64_t reduction, std::int64_t ignore_index,
                                     const at::Tensor& total_weight) {
  const std::int64_t dim = class_dim(self);
  const Targets t(target, weight, ignore_index, self.scalar_type());
  const at::Tensor each = t.gradients(grad, reduction, total_weight).neg();
  return at::zeros_like(self).scatter(dim, t.classes.unsqueeze(dim), each.unsqueeze(dim));
}

}  // namespace intarsia::rules
