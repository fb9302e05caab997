// What a rank computes: tiles between runs of its queries and runs of keys that it has.
#pragma once

#include <cstdint>
#include <vector>

#include "context/mask/tiles.h"
#include "intarsia/sequence_order.h"

namespace intarsia::context {

/// Positions that stand one after the other in a tensor, from `offset` on.
struct Run {
  Range positions;
  std::int64_t offset = 0;
  friend bool operator==(const Run&, const Run&) = default;
};
using Runs = std::vector<Run>;

/// What stands at these places of a sequence; offsets begin at `offset`.
Runs runs_at(const SequenceOrder& order, Range places, std::int64_t offset = 0);

/// A tile, and where its queries and keys begin in their tensors.
struct Work {
  Tile tile;
  std::int64_t query_offset = 0;
  std::int64_t key_offset = 0;
};

/// Limits for tiles; 0 for none.
struct TileLimits {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

/// All tiles between queries and keys. `all_keys` is the length of the full sequence of keys.
std::vector<Work> work_of(const AttentionMask& mask, std::int64_t sample, const Runs& queries,
                          const Runs& keys, std::int64_t all_keys, const TileLimits& limits = {});

/// The places outside of `held` at which keys stand that the queries see: sorted runs.
std::vector<Range> places_needed(const AttentionMask& mask, const Runs& queries,
                                 const SequenceOrder& key_order, std::int64_t all_keys, Range held);

}  // namespace intarsia::context
