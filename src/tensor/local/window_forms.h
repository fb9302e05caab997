// Ops that read elements beyond the edges of pieces: convolutions, pools, padding, flip and roll.
#pragma once

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"

namespace intarsia {

/// Fills in what the op does on windows, for the layouts chosen; leaves the decision alone where no
/// rank reads beyond its piece.
void set_window_form(const Frame& frame, const Question& question, const std::vector<Shape>& sizes,
                     Decision& decision);

}  // namespace intarsia
