// Part: a block of rows of what a rank holds of a tensor; what one rank writes of it, or reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/boxes.h"

namespace intarsia::checkpoint {

/// The global indices of a part, for each dimension as ascending runs, as in Boxes.
struct Part {
  std::vector<std::vector<Range>> runs;
  /// Its sizes in memory, and in a file.
  Shape shape;

  std::int64_t numel() const;
  /// Whether it is all of a tensor with these sizes.
  bool covers(const Shape& sizes) const;
  /// `[0,4)x[2,3)+[6,7)`.
  std::string to_string() const;
  friend bool operator==(const Part&, const Part&) = default;
};

/// The dimension whose rows share a piece between ranks: the first that is longer than 1. Rows of
/// it are contiguous in memory. 0 where there is none.
std::size_t row_dim(const Shape& shape);

/// The rows `local` of what `held` says. REQUIRES: `local` is inside its row dimension, or held has
/// no dimensions.
Part part_of(const Boxes& held, Range local);
/// All of it.
Part part_of(const Boxes& held);

/// Whether two parts of one tensor have elements in common.
bool overlap(const Part& a, const Part& b);

}  // namespace intarsia::checkpoint
