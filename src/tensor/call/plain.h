// Plain tensors beside distributed ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace intarsia {

class Frame;

/// Says which stored parameter this thread used last. Plain tensors of different blocks are told
/// apart by it: a rank may skip some.
void note_use(std::size_t parameter);

/// Records, checks or refuses a plain operand, as the world's mode says. `operand`: its place among
/// the tensors of the frame.
void note_plain(const Frame& frame, std::size_t operand);

}  // namespace intarsia
