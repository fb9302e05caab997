// How a distributed tensor differs from the full tensor that it should be.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace intarsia {

/// How far a result may be off: as the coarsest dtype allows, of the inputs of the call and of the
/// result itself.
double tolerance(const std::vector<at::Tensor>& inputs, const at::Tensor& result);

/// Whether two plain tensors have the same sizes and dtype, and values that are at most `t` apart,
/// absolute and relative. NaN equals NaN. What is no float is equal, or is not close.
bool all_close(const at::Tensor& a, const at::Tensor& b, double t);

/// How a distributed tensor, `got`, differs from the full tensor that it should be: in sizes,
/// dtype, pieces that do not fit its layout, or values; with `check_order` also in the order of its
/// dimensions in memory. Empty: it does not. `inputs`: those of the call, for the tolerance.
std::string difference(const at::Tensor& got, const at::Tensor& want,
                       const std::vector<at::Tensor>& inputs, bool check_order);

}  // namespace intarsia
