// Ops in terms of other ops, for layouts in which the op on the pieces would be wrong: each
// function has the arguments of the op whose name it bears. On distributed tensors the ops in it
// find out what has to be sent, which is little: reduced sizes only.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace intarsia::rules {

at::Tensor softmax_formula(const at::Tensor& self, std::int64_t dim, bool half_to_float);
at::Tensor log_softmax_formula(const at::Tensor& self, std::int64_t dim, bool half_to_float);
at::Tensor softmax_backward_formula(const at::Tensor& grad, const at::Tensor& output,
                                    std::int64_t dim, at::ScalarType input_dtype);
at::Tensor log_softmax_backward_formula(const at::Tensor& grad, const at::Tensor& output,
                                        std::int64_t dim, at::ScalarType input_dtype);
at::Tensor logsumexp_formula(const at::Tensor& self, at::IntArrayRef dim, bool keepdim);

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

}  // namespace intarsia::rules
