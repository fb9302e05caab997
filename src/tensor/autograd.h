// Where autograd meets layouts.
#pragma once

#include <ATen/core/Tensor.h>

namespace intarsia {

/// The first time an op sees a leaf that requires a gradient: makes the gradient end in the leaf's
/// layout, with one move per backward.
void attach_leaf_hook(const at::Tensor& tensor);

}  // namespace intarsia
