// Which coordinate is the i-th? Counted as everywhere: the first axis varies slowest.
#pragma once

#include <cstdint>

#include "intarsia/mesh.h"

namespace intarsia {

/// The `place`-th of the coordinates that differ from `at` along `axes` (indices of mesh axes)
/// only.
template <class Axes>
Coordinate coordinate_along(const Mesh& mesh, const Axes& axes, std::int64_t place, Coordinate at) {
  for (std::size_t i = axes.size(); i-- > 0;) {
    const auto axis = static_cast<std::size_t>(axes[i]);
    at[axis] = place % mesh.size(axis);
    place /= mesh.size(axis);
  }
  return at;
}

/// The `place`-th coordinate of a mesh.
inline Coordinate coordinate_at(const Mesh& mesh, std::int64_t place) {
  Coordinate at(mesh.axes(), 0);
  for (std::size_t a = mesh.axes(); a-- > 0; place /= mesh.size(a)) at[a] = place % mesh.size(a);
  return at;
}

}  // namespace intarsia
