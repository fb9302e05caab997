// Convolutions on pieces: windows fetched, padded, and gradients given back.
#pragma once

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"

namespace intarsia {

/// Fills in what the op does on windows; nothing where no rank reads beyond its piece.
void set_convolution(const Frame& f, const Question& q, const std::vector<Shape>& sizes,
                     Decision& d);
void set_convolution_backward(const Frame& f, const Question& q, const std::vector<Shape>& sizes,
                              Decision& d);

}  // namespace intarsia
