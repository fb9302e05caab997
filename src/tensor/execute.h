// Running a decision on the pieces.
#pragma once

#include "tensor/frame.h"

namespace intarsia {

/// Runs the call as decided. `first`: the decision was just made; what only a local result can say,
/// dtypes and the sizes of ops without a rule, is then filled in.
void execute(Frame& frame, Decision& decision, bool first);

/// The quick way for `decision.simple`.
void execute_simple(Frame& frame, const Decision& decision);

/// For `decision.by_formula`: the rule's formula on distributed tensors, operands moved first.
void execute_formula(Frame& frame, const Decision& decision);

/// For a view whose elements had to be moved: `moved` holds all elements of `base`.
std::shared_ptr<Extra::Window> window_of(DistributedImpl& base, const at::Tensor& moved);

/// After a write to a view whose elements had been moved: brings them to its base.
void write_through(DistributedImpl& view, std::string_view op);

}  // namespace intarsia
