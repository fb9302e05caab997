// Pools on pieces: windows fetched, means and indices as in the full tensor.
#pragma once

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"

namespace intarsia {

/// Fills in what the op does on windows; nothing where no rank reads beyond its piece.
void set_pool(const Frame& f, const Question& q, const std::vector<Shape>& sizes, Decision& d);
void set_pool_backward(const Frame& f, const Question& q, Decision& d);

}  // namespace intarsia
