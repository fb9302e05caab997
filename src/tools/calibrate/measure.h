// Times collectives of a world, and copies.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "intarsia/world.h"

namespace intarsia::tools {

enum class Measured : std::uint8_t {
  all_to_all,
  one_partner,  ///< an all_to_all in which each rank sends to the next one only
  all_gather,
  all_reduce,
  copy,    ///< within each rank, while all copy
  matmul,  ///< a product of square matrices on each rank, while all multiply
};

std::string_view to_text(Measured what);

/// A collective over flat buffers of float32.
struct Trial {
  Comm comm;
  Measured what = Measured::all_to_all;
  /// Of the longer buffer: what an all_to_all sends and gets, what an all_gather gives. A multiple
  /// of the group's size; of a product, that of a matrix.
  std::int64_t elements = 0;

  std::int64_t bytes() const;
  /// That each rank waits for, one after the other.
  double messages() const;
  /// Bytes that each rank receives.
  double received() const;
};

/// The seconds that each trial takes: the median of repeats, of which each counts as its slowest
/// rank. Each repeat goes round all trials in another order, so that neither a slow minute nor the
/// trial before falls on one of them alone. Small trials are several calls in a row, of which the
/// mean counts. COLLECTIVE: all ranks of the world, with the same trials.
std::vector<double> measure(World& world, std::span<const Trial> trials, int repeats);

}  // namespace intarsia::tools
