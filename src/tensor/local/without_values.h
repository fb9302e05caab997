// Simulated worlds: pieces without values.
#pragma once

#include <ATen/core/Tensor.h>

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"
#include "world/session/memory.h"

namespace intarsia {

/// A tensor without values in the place of a plain one. It counts as no memory: the plain one does.
at::Tensor stand_in(const at::Tensor& plain);

/// Zeros with memory, of as many dimensions and of the dtype, for a piece without values: one
/// element or, where rows are kept, one row.
at::Tensor tiny(const at::Tensor& piece, bool keeps_rows);

/// Makes a decision fit for pieces without values: where the specs of its results say all about
/// them, the op need not run. Refuses what needs values.
void leave_out_values(const Frame& f, Decision& d);

}  // namespace intarsia
