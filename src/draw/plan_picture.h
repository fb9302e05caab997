// The picture of a plan: the tensor in each layout on the way, split in pieces.
#pragma once

#include <string>

#include "plan/report.h"

namespace intarsia::draw {

/// One column for each layout, with the pieces and the ranks that hold them, and an arrow for each
/// step. Shows the first two dimensions and names the others. Every piece up to 16 ranks; of more,
/// the piece of the first. An SVG file that needs no other file, on a white ground.
std::string to_svg(const PlanReport& report);

}  // namespace intarsia::draw
