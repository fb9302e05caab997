// What a call returns, where running it on the pieces does not tell: dtypes on ranks with empty
// pieces or without values, and everything on ranks outside the mesh. Only while a decision is new.
#pragma once

#include "tensor/dispatch/local_operands.h"

namespace intarsia {

/// Takes the dtypes of the results from what the op returned.
void take_dtypes(const torch::jit::Stack& returned, Decision& decision);

/// The dtypes of the results, from a run on pieces with one element where this rank has none: they
/// must be the same on all ranks.
void learn_dtypes(const LocalOperands& operands, std::size_t member, Decision& decision);

/// The same in a simulated world: from a run without values or, where torch has no kernel for that,
/// on few elements of each tensor.
void learn_without_values(const LocalOperands& operands, std::size_t member, Decision& decision);

/// Where no piece is hosted here: what the results are, from a run on zeros of the global sizes.
void learn_from_zeros(const LocalOperands& operands, Decision& decision);

}  // namespace intarsia
