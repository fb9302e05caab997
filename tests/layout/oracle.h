// Brute force for layouts: arrays of global element numbers, cut the slow and obvious way.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "intarsia/boxes.h"
#include "intarsia/layout.h"

namespace intarsia::testing {

using Indices = std::vector<std::int64_t>;

/// Calls `visit(coordinate)` for every coordinate of a mesh.
template <class Visit>
void for_each_coordinate(const Mesh& mesh, const Visit& visit) {
  Coordinate at(mesh.axes(), 0);
  for (std::int64_t i = 0; i < mesh.size(); ++i) {
    visit(at);
    for (std::size_t a = mesh.axes(); a-- > 0;) {
      if (++at[a] < mesh.size(a)) break;
      at[a] = 0;
    }
  }
}

/// torch.chunk(list, n), filled up with empty lists.
inline std::vector<Indices> naive_chunk(const Indices& list, std::int64_t n) {
  std::vector<Indices> out(static_cast<std::size_t>(n));
  const auto length = static_cast<std::int64_t>(list.size());
  const std::int64_t size = (length + n - 1) / n;
  for (std::int64_t i = 0; i < length; ++i)
    out[static_cast<std::size_t>(i / size)].push_back(list[i]);
  return out;
}

/// The indices of one dimension that the rank at `at` holds, by cutting a list of all of them.
inline Indices naive_indices(const Layout& layout, int dim, std::int64_t size,
                             const Coordinate& at) {
  Indices held(static_cast<std::size_t>(size));
  std::iota(held.begin(), held.end(), 0);
  for (const std::int8_t a : layout.axes_of(dim)) {
    Indices next;
    for (const Indices& block : naive_chunk(held, layout.placement(a).split())) {
      const Indices piece =
          naive_chunk(block, layout.mesh().size(a))[static_cast<std::size_t>(at[a])];
      next.insert(next.end(), piece.begin(), piece.end());
    }
    held = next;
  }
  return held;
}

/// The indices that `boxes` lists for one dimension.
inline Indices listed_indices(const Boxes& b, std::size_t dim) {
  Indices out;
  for (const Range& r : b.runs(dim)) {
    for (std::int64_t i = r.begin; i < r.end; ++i) out.push_back(i);
  }
  return out;
}

/// An array of numbers with a shape, row-major.
struct Array {
  Indices shape;
  Indices values;

  static Array count(const Indices& shape) {
    Array a{shape, {}};
    std::int64_t n = 1;
    for (const std::int64_t s : shape) n *= s;
    a.values.resize(static_cast<std::size_t>(n));
    std::iota(a.values.begin(), a.values.end(), 0);
    return a;
  }

  /// out[i...] = this[source(i...)], for every index of `sizes`.
  template <class Source>
  Array gather(const Indices& sizes, const Source& source) const {
    Array out = count(sizes);
    Indices at(sizes.size(), 0);
    for (std::int64_t& value : out.values) {
      const Indices from = source(at);
      std::int64_t flat = 0;
      for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + from[d];
      value = values[static_cast<std::size_t>(flat)];
      for (std::size_t d = sizes.size(); d-- > 0;) {
        if (++at[d] < sizes[d]) break;
        at[d] = 0;
      }
    }
    return out;
  }

  /// The piece of one rank.
  Array piece(const Layout& layout, const Coordinate& at) const {
    const Boxes b = boxes(layout, shape, at);
    std::vector<Indices> held;
    Indices sizes;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      held.push_back(listed_indices(b, d));
      sizes.push_back(static_cast<std::int64_t>(held.back().size()));
    }
    return gather(sizes, [&held](Indices i) {
      for (std::size_t d = 0; d < i.size(); ++d) i[d] = held[d][static_cast<std::size_t>(i[d])];
      return i;
    });
  }

  friend bool operator==(const Array&, const Array&) = default;
};

}  // namespace intarsia::testing
