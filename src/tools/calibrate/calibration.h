// What `intarsia calibrate` measures, and the topology and costs that it makes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/mesh.h"
#include "intarsia/step_time.h"
#include "intarsia/topology.h"
#include "intarsia/world.h"

namespace intarsia::tools {

struct CalibrationOptions {
  /// Levels to tell apart, the innermost first, without the last, which joins all ranks. Links are
  /// what is measured.
  std::vector<Topology::Level> levels = {};
  /// Whose axes, alone and in all sets, get links of their own.
  std::optional<Mesh> mesh = std::nullopt;
  /// Bytes of buffers, ascending.
  std::vector<std::int64_t> sizes = {};
  int repeats = 1;
  bool quick = false;  ///< what computing costs: on fewer operands
};

/// ValueError where these options do not suit a world of so many ranks.
void check(const CalibrationOptions& options, std::int64_t ranks);

struct Calibration {
  StepCosts costs;     ///< with the topology
  std::string report;  ///< what was measured, and how far the topology is off
};

/// COLLECTIVE: all ranks of the world. REQUIRES: `check` has passed.
Calibration calibrate(World& world, const CalibrationOptions& options);

}  // namespace intarsia::tools
