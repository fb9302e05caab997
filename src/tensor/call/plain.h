// Plain tensors beside distributed ones.
#pragma once

#include <ATen/core/Tensor.h>

namespace intarsia {

class Frame;

/// Records, checks or refuses a plain operand, as the world's mode says.
void note_plain(const Frame& frame, const at::Tensor& tensor);

}  // namespace intarsia
