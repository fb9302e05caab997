// Results, and the memory for results, that no local op makes.
#pragma once

#include "tensor/dispatch/local_operands.h"

namespace intarsia {

/// What a local op writes for out=: it takes the sizes that the op gives. Where the memory format
/// of the result is that of an operand, it has them already, in the order that out= has: some ops
/// write by strides that they do not look up.
at::Tensor piece_for_out(const LocalOperands& operands, std::size_t operand, std::size_t member);

/// The results of one hosted rank where their specs say all about them: in a simulated world. The
/// kernel that would have made them enters the log of steps.
torch::jit::Stack made_by_spec(LocalOperands& operands, std::size_t member);

/// The results of a hosted rank that has nothing of some operand: empty, or what adds nothing.
torch::jit::Stack made_without_running(LocalOperands& operands, std::size_t member);

}  // namespace intarsia
