// Ranks whose backward ended with an error, before they go on.
#pragma once

#include <cstdint>

#include "intarsia/mesh.h"
#include "intarsia/world.h"

namespace intarsia {

/// How far a rank has come: the collectives that it began and, of reductions, ended.
struct Progress {
  std::int64_t gathers = 0;
  std::int64_t reductions = 0;
  std::int64_t finished = 0;
  friend bool operator==(const Progress&, const Progress&) = default;
};

/// Returns when all ranks of the mesh have come here with the same progress: they failed alike, and
/// none waits for a collective of another. WorldError that names the ranks which differ, or which
/// did not come: because their backward did not fail, they wait for this one. They meet by the
/// world's store, since their groups may be out of step; at most a minute.
/// COLLECTIVE: all ranks of the mesh.
void meet_after_failure(World& world, const Mesh& mesh, const Progress& progress);

}  // namespace intarsia
