// Where the ranks of this process are in a mesh.
#pragma once

#include <vector>

#include "intarsia/world.h"

namespace intarsia {

/// The coordinates of the hosted ranks in the mesh, in the order of pieces.
std::vector<Coordinate> hosted_coordinates(const World& world, const Mesh& mesh);

/// Whether a hosted rank is in the mesh.
bool hosts_any(const World& world, const Mesh& mesh);

}  // namespace intarsia
