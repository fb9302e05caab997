// What a Mesh holds, and the arithmetic of strides that its files share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "intarsia/mesh.h"

namespace intarsia {

struct Mesh::Data {
  /// One stride of one axis, ready for finding coordinates: steps positive and descending.
  struct Digit {
    std::int64_t step;
    std::int64_t size;
    std::size_t axis;
    std::int64_t weight;  // what one step adds to the axis's index
    bool backwards;
  };

  std::int64_t base = 0;
  std::int64_t lowest = 0;  // the smallest rank
  std::int64_t highest = 0;
  std::int64_t size = 1;
  std::vector<Axis> axes;
  std::vector<std::vector<Stride>> strides;  // per axis, canonical; empty when there is a table
  std::vector<Digit> digits;
  std::vector<std::int64_t> table;        // row-major, or empty
  std::vector<std::int64_t> table_order;  // positions in `table`, sorted by rank
  std::size_t hash = 0;

  bool operator==(const Data& other) const {
    const auto same_axis = [](const Axis& a, const Axis& b) {
      return a.name == b.name && a.size == b.size;
    };
    return hash == other.hash && base == other.base && strides == other.strides &&
           table == other.table &&
           std::equal(axes.begin(), axes.end(), other.axes.begin(), other.axes.end(), same_axis);
  }

  std::size_t compute_hash() const {
    std::uint64_t h = hash_mix(0, static_cast<std::uint64_t>(base));
    const auto mix = [&h](std::int64_t value) {
      h = hash_mix(h, static_cast<std::uint64_t>(value));
    };
    for (const Axis& a : axes) {
      h = hash_mix(h, hash_text(a.name));
      mix(a.size);
    }
    for (const auto& list : strides) {
      for (const Stride& s : list) {
        mix(s.size);
        mix(s.step);
      }
    }
    std::for_each(table.begin(), table.end(), mix);
    return h;
  }
};

inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 40;

/// The number of elements of a walk; more than kMostRanks when it would be too many.
std::int64_t walk_size(const std::vector<Stride>& strides);

/// The strides of ranks that count up with the last axis fastest.
std::vector<std::vector<Stride>> row_major(const std::vector<Axis>& axes);

/// Refuses too many axes, sizes below 1, and names that are no names or not distinct.
void check_axes(std::string_view where, const std::vector<Axis>& axes);

/// The number of ranks, unless there are too many.
std::int64_t checked_size(std::string_view where, const std::vector<Axis>& axes);

}  // namespace intarsia
