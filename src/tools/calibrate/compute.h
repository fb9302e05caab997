// What computing costs a rank: the entry `compute` of a topology file.
#pragma once

#include "intarsia/step_time.h"
#include "intarsia/world.h"

namespace intarsia::tools {

struct ComputeOptions {
  int repeats = 5;
  /// Of the operands on which an op is timed in turn: more than caches hold.
  std::int64_t operand_bytes = std::int64_t{64} << 20;
};

/// Measures it on all ranks at the same time, and fills all but the collectives of `costs`. Each
/// figure is the median of repeats, of which each counts as its slowest rank. COLLECTIVE.
void measure_compute(World& world, const ComputeOptions& options, StepCosts& costs);

/// In words.
std::string compute_text(const StepCosts& costs);

}  // namespace intarsia::tools
