#include "context/mask/tiles.h"

#include <algorithm>

namespace intarsia::context {
namespace {

/// What the queries of a rectangle see of its keys.
struct Seen {
  Range queries;            // from the first to the last that sees any
  Range keys;               // from the first to the last that is seen
  Range common;             // seen by each of those queries, if it is one run
  bool all_one_run = true;  // for each of those queries
};

class Tiling {
 public:
  Tiling(const AttentionMask& mask, std::int64_t sample, std::int64_t all_keys)
      : mask_(mask), sample_(sample), all_keys_(all_keys) {}

  void add(Range queries, Range keys) {
    const Seen seen = look(queries, keys);
    if (seen.queries.size() == 0) return;
    queries = seen.queries;
    keys = seen.keys;
    if (seen.all_one_run && seen.common == keys) return put(queries, keys, TileKind::full);
    if (is_causal(queries, keys)) return put(queries, keys, TileKind::causal);
    const bool is_mostly_common = 2 * seen.common.size() >= keys.size();
    if (queries.size() > kTileQueries && !is_mostly_common) {
      const std::int64_t half = (queries.size() / 2 + kTileQueries - 1) / kTileQueries;
      const std::int64_t middle = queries.begin + half * kTileQueries;
      add({queries.begin, middle}, keys);
      add({middle, queries.end}, keys);
    } else if (seen.common.size() >= kTileQueries) {
      add(queries, {keys.begin, seen.common.begin});
      put(queries, seen.common, TileKind::full);
      add(queries, {seen.common.end, keys.end});
    } else if (queries.size() > kTileQueries) {
      const std::int64_t middle = queries.begin + kTileQueries;
      add({queries.begin, middle}, keys);
      add({middle, queries.end}, keys);
    } else if (keys.size() > kTileKeys) {
      add(queries, {keys.begin, keys.begin + kTileKeys});
      add(queries, {keys.begin + kTileKeys, keys.end});
    } else {
      put(queries, keys, TileKind::partial);
    }
  }

  std::vector<Tile> take() { return std::move(tiles_); }

 private:
  void put(Range queries, Range keys, TileKind kind) { tiles_.push_back({queries, keys, kind}); }

  /// The runs of the keys that a query sees.
  const std::vector<Range>& runs_of(std::int64_t query, Range keys) {
    mask_.keys_of(sample_, query, all_keys_, runs_);
    for (Range& run : runs_) run = overlap(run, keys);
    std::erase_if(runs_, [](const Range& run) { return run.size() == 0; });
    return runs_;
  }

  Seen look(Range queries, Range keys) {
    Seen out;
    if (keys.size() <= 0) return out;
    for (std::int64_t q = queries.begin; q < queries.end; ++q) {
      const auto& runs = runs_of(q, keys);
      if (runs.empty()) continue;
      if (out.queries.size() == 0) {
        out.queries = {q, q + 1};
        out.keys = {runs.front().begin, runs.back().end};
        out.common = runs.front();
      } else {
        out.all_one_run = out.all_one_run && q == out.queries.end;  // no gap between queries
        out.queries.end = q + 1;
        out.keys.begin = std::min(out.keys.begin, runs.front().begin);
        out.keys.end = std::max(out.keys.end, runs.back().end);
        out.common = overlap(out.common, runs.front());
      }
      out.all_one_run = out.all_one_run && runs.size() == 1;
    }
    if (!out.all_one_run) out.common = {};
    return out;
  }

  bool is_causal(Range queries, Range keys) {
    for (std::int64_t q = queries.begin; q < queries.end; ++q) {
      const std::int64_t end = std::min(keys.begin + (q - queries.begin) + 1, keys.end);
      const auto& runs = runs_of(q, keys);
      if (runs.size() != 1 || runs[0] != Range{keys.begin, end}) return false;
    }
    return true;
  }

  const AttentionMask& mask_;
  const std::int64_t sample_;
  const std::int64_t all_keys_;
  std::vector<Tile> tiles_;
  std::vector<Range> runs_;
};

/// Which blocks of keys are seen by some of the queries that were added.
class Seeing {
 public:
  Seeing(const AttentionMask& mask, std::int64_t all_keys, std::int64_t block)
      : mask_(mask),
        all_keys_(all_keys),
        block_(block),
        change_(static_cast<std::size_t>((all_keys + block - 1) / block) + 1, 0) {}

  void add(std::int64_t sample, Range queries) {
    for (std::int64_t q = queries.begin; q < queries.end; ++q) {
      mask_.keys_of(sample, q, all_keys_, runs_);
      for (const Range& run : runs_) {
        ++change_[static_cast<std::size_t>(run.begin / block_)];
        --change_[static_cast<std::size_t>((run.end - 1) / block_ + 1)];
      }
    }
  }

  /// Of blocks: sorted runs that do not touch.
  std::vector<Range> runs() const {
    std::vector<Range> out;
    std::int64_t count = 0;
    for (std::size_t i = 0; i + 1 < change_.size(); ++i) {
      count += change_[i];
      if (count == 0) continue;
      const auto at = static_cast<std::int64_t>(i);
      if (!out.empty() && out.back().end == at) {
        ++out.back().end;
      } else {
        out.push_back({at, at + 1});
      }
    }
    return out;
  }

 private:
  const AttentionMask& mask_;
  const std::int64_t all_keys_;
  const std::int64_t block_;
  std::vector<std::int64_t> change_;  // how many runs begin and end at a block
  std::vector<Range> runs_;
};

}  // namespace

std::vector<Tile> tiles_of(const AttentionMask& mask, std::int64_t sample, Range queries,
                           Range keys, std::int64_t all_keys) {
  Tiling tiling(mask, sample, all_keys);
  tiling.add(queries, keys);
  return tiling.take();
}

std::int64_t pairs_of(const AttentionMask& mask, std::int64_t sample, Range queries, Range keys,
                      std::int64_t all_keys) {
  std::int64_t out = 0;
  std::vector<Range> runs;
  for (std::int64_t q = queries.begin; q < queries.end; ++q) {
    mask.keys_of(sample, q, all_keys, runs);
    for (const Range& run : runs) out += overlap(run, keys).size();
  }
  return out;
}

std::vector<Range> keys_seen(const AttentionMask& mask, const std::vector<Range>& queries,
                             std::int64_t all_keys) {
  Seeing seeing(mask, all_keys, 1);
  for (std::int64_t sample = 0; sample < mask.samples(); ++sample) {
    for (const Range& each : queries) seeing.add(sample, each);
  }
  return seeing.runs();
}

std::int64_t blocks_seen(const AttentionMask& mask, std::int64_t sample, Range queries,
                         std::int64_t all_keys, std::int64_t block) {
  Seeing seeing(mask, all_keys, block);
  seeing.add(sample, queries);
  std::int64_t out = 0;
  for (const Range& run : seeing.runs()) out += run.size();
  return out;
}

}  // namespace intarsia::context
