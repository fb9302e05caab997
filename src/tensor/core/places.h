// The ranks of a group along some axes of a mesh.
#pragma once

#include <string>
#include <vector>

#include "intarsia/layout.h"
#include "layout/coordinates.h"

namespace intarsia {

/// The ranks along some axes, the first of which varies slowest: the order of World::along. The
/// other axes stay at 0.
class Places {
 public:
  Places(const Mesh& mesh, const AxisList& axes) : mesh_(mesh), axes_(axes) {}

  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const std::int8_t a : axes_) out.push_back(mesh_.name(static_cast<std::size_t>(a)));
    return out;
  }

  std::size_t count() const {
    std::int64_t n = 1;
    for (const std::int8_t a : axes_) n *= mesh_.size(static_cast<std::size_t>(a));
    return static_cast<std::size_t>(n);
  }

  Coordinate at(std::size_t place) const {
    return coordinate_along(mesh_, axes_, static_cast<std::int64_t>(place),
                            Coordinate(mesh_.axes(), 0));
  }

  std::size_t of(const Coordinate& at) const {
    std::int64_t place = 0;
    for (const std::int8_t a : axes_) {
      const auto axis = static_cast<std::size_t>(a);
      place = place * mesh_.size(axis) + at[axis];
    }
    return static_cast<std::size_t>(place);
  }

 private:
  Mesh mesh_;
  AxisList axes_;
};

}  // namespace intarsia
