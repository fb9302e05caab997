// Tiles: the rectangles of queries and keys that attention computes.
#pragma once

#include <cstdint>
#include <vector>

#include "intarsia/attention_mask.h"

namespace intarsia::context {

enum class TileKind : std::uint8_t {
  full,     ///< every query sees every key
  causal,   ///< the i-th query sees the first i + 1 keys
  partial,  ///< neither: it needs a mask of its own
};

/// Positions in the full sequence.
struct Tile {
  Range queries;
  Range keys;
  TileKind kind = TileKind::full;
  friend bool operator==(const Tile&, const Tile&) = default;
};

/// A partial tile has at most so many queries and keys, so that masks stay small.
inline constexpr std::int64_t kTileQueries = 128;
inline constexpr std::int64_t kTileKeys = 2048;

/// Tiles that hold every pair of a run of queries and a run of keys that see each other, each once.
/// `all_keys` is the length of the full sequence of keys.
std::vector<Tile> tiles_of(const AttentionMask& mask, std::int64_t sample, Range queries,
                           Range keys, std::int64_t all_keys);

/// How many of these pairs see each other.
std::int64_t pairs_of(const AttentionMask& mask, std::int64_t sample, Range queries, Range keys,
                      std::int64_t all_keys);

/// The keys that some of the queries see: sorted runs that do not touch.
std::vector<Range> keys_seen(const AttentionMask& mask, const std::vector<Range>& queries,
                             std::int64_t all_keys);

/// How many blocks of `block` keys, from the first key on, have one that some of the queries see.
std::int64_t blocks_seen(const AttentionMask& mask, std::int64_t sample, Range queries,
                         std::int64_t all_keys, std::int64_t block);

/// The range that two have in common; an empty one at 0 if there is none.
inline Range overlap(const Range& a, const Range& b) {
  const Range both{a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  return both.size() > 0 ? both : Range{};
}

}  // namespace intarsia::context
