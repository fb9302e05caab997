// The arithmetic of torch.chunk: n chunks of ceil(length / n), the last ones short or empty.
#pragma once

#include <algorithm>
#include <cstdint>

#include "intarsia/boxes.h"

namespace intarsia {

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The i-th of n chunks of `length`. chunk(5, 4, 2) is [4,5), chunk(5, 4, 3) is [5,5).
inline Range chunk(std::int64_t length, std::int64_t n, std::int64_t i) {
  const std::int64_t size = ceil_div(length, n);
  return {std::min(i * size, length), std::min((i + 1) * size, length)};
}

/// How one axis shards a dimension: `length` positions in `blocks` blocks, and each block in `n`
/// chunks. The rank holds the i-th chunk of every block.
struct DimShard {
  std::int64_t length;
  std::int64_t n;
  std::int64_t i;
  std::int64_t blocks;

  std::int64_t block() const { return ceil_div(length, blocks); }
  /// Blocks of full length; one shorter block of `length % block()` may follow.
  std::int64_t full_blocks() const { return length == 0 ? 0 : length / block(); }
  std::int64_t rest() const { return length == 0 ? 0 : length % block(); }
  /// How many positions the rank holds.
  std::int64_t held() const {
    return full_blocks() * chunk(block(), n, i).size() + chunk(rest(), n, i).size();
  }
};

}  // namespace intarsia
