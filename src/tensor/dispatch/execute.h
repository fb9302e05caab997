// Running a decision on the pieces.
#pragma once

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"

namespace intarsia {

/// Runs the call on the pieces, as decided: Strategy::pieces, and Strategy::simple too.
void execute(Frame& frame, const Decision& decision);

/// The same for a decision that was just made: what only a local result can say, dtypes and the
/// sizes of ops without a rule, is filled in.
void execute_new(Frame& frame, Decision& decision);

/// The quick way for Strategy::simple.
void execute_simple(Frame& frame, const Decision& decision);

/// Strategy::formula: the rule's formula on distributed tensors, operands moved first.
void execute_formula(Frame& frame, const Decision& decision);

}  // namespace intarsia
