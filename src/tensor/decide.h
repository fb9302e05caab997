// Making decisions: slow, pure, and the same on every rank.
#pragma once

#include "tensor/frame.h"

namespace intarsia {

/// How to run the call. REQUIRES: frame.lead; not Family::random or Family::refused.
Decision decide(const Frame& frame);

/// Parts of it, by family.
void decide_view(const Frame& frame, Decision& decision);
void decide_each(const Frame& frame, Decision& decision);

/// Plans the moves of all operands to `decision.layouts`.
void plan_moves(const Frame& frame, Decision& decision);

/// The coordinates of the hosted ranks in the mesh, in the order of pieces.
std::vector<Coordinate> hosted_coordinates(const World& world, const Mesh& mesh);

}  // namespace intarsia
