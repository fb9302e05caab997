// Times collectives of a world, and copies.
#pragma once

#include <cstdint>
#include <functional>
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
  copy,       ///< within each rank, while all copy
  attention,  ///< of kAttention, on each rank, while all compute
  matmul,     ///< a product of square matrices, likewise
};

/// The attention that is timed.
struct AttentionSizes {
  std::int64_t heads = 4, positions = 1024, head_size = 64;

  std::int64_t elements() const { return heads * positions * head_size; }
  double operations() const {
    return 4.0 * static_cast<double>(elements()) * static_cast<double>(positions);
  }
};
inline constexpr AttentionSizes kAttention;

std::string_view to_text(Measured what);

inline constexpr std::int64_t kElementSize = 4;  ///< of buffers, which are float32

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

/// The same for whatever `seconds` times on this rank, of so many kinds.
std::vector<double> measure(World& world, std::size_t count, int repeats,
                            const std::function<double(std::size_t)>& seconds);

/// Of one of so many calls in a row on this rank.
double seconds_each(const at::Device& device, std::int64_t calls,
                    const std::function<void()>& call);

}  // namespace intarsia::tools
