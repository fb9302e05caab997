// Calls that would take a sequence which is stored in an order for a contiguous one.
#pragma once

#include "intarsia/sequence_order.h"

namespace intarsia {
class Frame;
}

namespace intarsia::context {

/// ValueError if a call would: a plain tensor as long as the sequence, of which nothing tells in
/// which order it is (positions and masks that a model makes), or an op that takes neighbours for
/// neighbours (slices, shifts, running sums, convolutions) along the sharded sequence.
void check_order(const SequenceOrder& order, const Frame& call);

}  // namespace intarsia::context
