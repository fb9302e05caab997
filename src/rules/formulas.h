// Ops in terms of other ops, for layouts in which the op on the pieces would be wrong: each
// function has the arguments of the op whose name it bears. On distributed tensors the ops in it
// find out what has to be sent, which is little: reduced sizes only.
//
// A partial tensor that several ops need is reduced once, and so are views of it. Sums that are
// needed together are therefore stacked.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

#include "intarsia/rule.h"

namespace intarsia::rules {

/// The type to add up in: half precision would lose too much.
at::ScalarType wide(at::ScalarType type);
at::Tensor widened(const at::Tensor& t);

// ---- formulas.cpp ----

at::Tensor softmax_formula(const at::Tensor& self, std::int64_t dim, bool half_to_float);
at::Tensor safe_softmax_formula(const at::Tensor& self, std::int64_t dim,
                                std::optional<at::ScalarType> dtype);
at::Tensor log_softmax_formula(const at::Tensor& self, std::int64_t dim, bool half_to_float);
at::Tensor softmax_backward_formula(const at::Tensor& grad, const at::Tensor& output,
                                    std::int64_t dim, at::ScalarType input_dtype);
at::Tensor log_softmax_backward_formula(const at::Tensor& grad, const at::Tensor& output,
                                        std::int64_t dim, at::ScalarType input_dtype);
at::Tensor logsumexp_formula(const at::Tensor& self, at::IntArrayRef dim, bool keepdim);

/// The targets of a loss over classes.
struct Targets {
  at::Tensor ignored;
  at::Tensor classes;  ///< those to ignore as class 0
  at::Tensor weights;  ///< of each sample, 0 where it is ignored

  Targets(const at::Tensor& target, const std::optional<at::Tensor>& weight,
          std::int64_t ignore_index, at::ScalarType type);
  /// The gradient of each sample's loss, from that of all.
  at::Tensor gradients(const at::Tensor& grad, std::int64_t reduction,
                       const at::Tensor& total_weight) const;
};

/// Also of images: classes are dimension 1, or the only one.
std::tuple<at::Tensor, at::Tensor> nll_loss_formula(const at::Tensor& self,
                                                    const at::Tensor& target,
                                                    const std::optional<at::Tensor>& weight,
                                                    std::int64_t reduction,
                                                    std::int64_t ignore_index);
at::Tensor nll_loss_backward_formula(const at::Tensor& grad, const at::Tensor& self,
                                     const at::Tensor& target,
                                     const std::optional<at::Tensor>& weight,
                                     std::int64_t reduction, std::int64_t ignore_index,
                                     const at::Tensor& total_weight);

// ---- formulas_norm.cpp ----

using OptionalTensor = std::optional<at::Tensor>;
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor var_formula(const at::Tensor& self, at::OptionalIntArrayRef dim,
                       const std::optional<at::Scalar>& correction, bool keepdim);
at::Tensor std_formula(const at::Tensor& self, at::OptionalIntArrayRef dim,
                       const std::optional<at::Scalar>& correction, bool keepdim);
TwoTensors var_mean_formula(const at::Tensor& self, at::OptionalIntArrayRef dim,
                            const std::optional<at::Scalar>& correction, bool keepdim);
TwoTensors std_mean_formula(const at::Tensor& self, at::OptionalIntArrayRef dim,
                            const std::optional<at::Scalar>& correction, bool keepdim);

at::Tensor argmax_formula(const at::Tensor& self, std::optional<std::int64_t> dim, bool keepdim);
at::Tensor argmin_formula(const at::Tensor& self, std::optional<std::int64_t> dim, bool keepdim);
TwoTensors max_formula(const at::Tensor& self, std::int64_t dim, bool keepdim);  // max.dim
TwoTensors min_formula(const at::Tensor& self, std::int64_t dim, bool keepdim);  // min.dim

/// For norm and linalg_vector_norm, in all their overloads.
void vector_norm_formula(const c10::OperatorHandle& op, torch::jit::Stack& stack);
at::Tensor renorm_formula(const at::Tensor& self, const at::Scalar& p, std::int64_t dim,
                          const at::Scalar& maxnorm);

ThreeTensors layer_norm_formula(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                const OptionalTensor& weight, const OptionalTensor& bias,
                                double eps);
ThreeTensors layer_norm_backward_formula(const at::Tensor& grad, const at::Tensor& input,
                                         at::IntArrayRef normalized_shape, const at::Tensor& mean,
                                         const at::Tensor& rstd, const OptionalTensor& weight,
                                         const OptionalTensor& bias, std::array<bool, 3> mask);

ThreeTensors group_norm_formula(const at::Tensor& input, const OptionalTensor& weight,
                                const OptionalTensor& bias, std::int64_t n, std::int64_t channels,
                                std::int64_t spatial, std::int64_t group, double eps);
ThreeTensors group_norm_backward_formula(const at::Tensor& grad, const at::Tensor& input,
                                         const at::Tensor& mean, const at::Tensor& rstd,
                                         const OptionalTensor& weight, std::int64_t n,
                                         std::int64_t channels, std::int64_t spatial,
                                         std::int64_t group, std::array<bool, 3> mask);

/// For all ops that are batch norm in training, and for those that are its gradient.
void batch_norm_formula(const c10::OperatorHandle& op, torch::jit::Stack& stack);
void batch_norm_backward_formula(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace intarsia::rules
