#include "world/session/hosted_coordinates.h"

#include <algorithm>

namespace intarsia {

std::vector<Coordinate> hosted_coordinates(const World& world, const Mesh& mesh) {
  std::vector<Coordinate> out;
  for (const std::int64_t rank : world.hosted()) {
    if (const auto at = mesh.coordinate_of(rank)) out.push_back(*at);
  }
  return out;
}

bool hosts_any(const World& world, const Mesh& mesh) {
  return std::ranges::any_of(world.hosted(), [&](std::int64_t r) { return mesh.contains(r); });
}

}  // namespace intarsia
