// Making decisions: slow, pure, and the same on every rank.
#pragma once

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"

namespace intarsia {

/// How to run the call. REQUIRES: frame.lead; not Family::random or Family::refused.
Decision decide(const Frame& frame);

/// Parts of it, by family.
void decide_view(const Frame& frame, Decision& decision);
void decide_each(const Frame& frame, Decision& decision);

/// Plans the moves of all operands to `decision.layouts`.
void plan_moves(const Frame& frame, Decision& decision);

}  // namespace intarsia
