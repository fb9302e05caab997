// Ops in terms of other ops, for layouts in which the op on the pieces would be wrong: each
// function has the arguments of the op whose name it bears. On distributed tensors the ops in it
// find out what has to be sent, which is little: reduced sizes only.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace intarsia::rules {

at::Tensor softmax_formula(const at::Tensor& self, std::int64_t dim, bool half_to_float);
at::Tensor log_softmax_formula(const at::Tensor& self, std::int64_t dim, bool half_to_float);
at::Tensor softmax_backward_formula(const at::Tensor& grad, const at::Tensor& output,
                                    std::int64_t dim, at::ScalarType input_dtype);
at::Tensor log_softmax_backward_formula(const at::Tensor& grad, const at::Tensor& output,
                                        std::int64_t dim, at::ScalarType input_dtype);
at::Tensor logsumexp_formula(const at::Tensor& self, at::IntArrayRef dim, bool keepdim);

}  // namespace intarsia::rules
