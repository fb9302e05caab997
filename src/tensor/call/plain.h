// Plain tensors beside distributed ones.
#pragma once

#include <ATen/core/Tensor.h>

namespace intarsia {

class Frame;

/// Records, checks or refuses a plain operand, as the world's mode says. `operand`: its place among
/// the tensors of the frame.
void note_plain(const Frame& frame, std::size_t operand);

}  // namespace intarsia
