// Gradients of leaves end in the leaves' layouts.
#pragma once

#include <ATen/core/Tensor.h>

namespace intarsia {

/// For a leaf that requires a gradient and is used in grad mode: makes the gradient end in the
/// leaf's layout, with one move per backward. Does nothing for other tensors, or when called again.
void attach_leaf_hook(const at::Tensor& tensor);

}  // namespace intarsia
