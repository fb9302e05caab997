#include "context/mask/work.h"

#include <algorithm>

namespace intarsia::context {
namespace {

/// Calls `visit` with ranges of at most `most`; 0 for any number.
template <class Visit>
void for_each_part(Range range, std::int64_t most, const Visit& visit) {
  const std::int64_t step = most > 0 ? most : std::max<std::int64_t>(range.size(), 1);
  for (std::int64_t begin = range.begin; begin < range.end; begin += step) {
    visit(Range{begin, std::min(begin + step, range.end)});
  }
}

/// From the first to the last key that any of the queries sees.
Range extent(const AttentionMask& mask, std::int64_t sample, Range queries, std::int64_t all_keys) {
  Range out;
  std::vector<Range> runs;
  for (std::int64_t q = queries.begin; q < queries.end; ++q) {
    mask.keys_of(sample, q, all_keys, runs);
    if (runs.empty()) continue;
    out = out.size() == 0
              ? Range{runs.front().begin, runs.back().end}
              : Range{std::min(out.begin, runs.front().begin), std::max(out.end, runs.back().end)};
  }
  return out;
}

}  // namespace

Runs runs_at(const SequenceOrder& order, Range places, std::int64_t offset) {
  Runs out;
  for (const Range& run : order.runs(places)) {
    out.push_back({run, offset});
    offset += run.size();
  }
  return out;
}

std::vector<Work> work_of(const AttentionMask& mask, std::int64_t sample, const Runs& queries,
                          const Runs& keys, std::int64_t all_keys, const TileLimits& limits) {
  std::vector<Work> out;
  for (const Run& q : queries) {
    const Range seen = extent(mask, sample, q.positions, all_keys);
    for (const Run& k : keys) {
      const Range both = overlap(k.positions, seen);
      for_each_part(q.positions, limits.queries, [&](Range some_queries) {
        for_each_part(both, limits.keys, [&](Range some_keys) {
          for (const Tile& tile : tiles_of(mask, sample, some_queries, some_keys, all_keys)) {
            out.push_back({tile, q.offset + tile.queries.begin - q.positions.begin,
                           k.offset + tile.keys.begin - k.positions.begin});
          }
        });
      });
    }
  }
  return out;
}

std::vector<Range> places_needed(const AttentionMask& mask, const Runs& queries,
                                 const SequenceOrder& key_order, std::int64_t all_keys,
                                 Range held) {
  std::vector<Range> positions;
  for (const Run& run : queries) positions.push_back(run.positions);
  const std::vector<Range> seen = keys_seen(mask, positions, all_keys);
  std::vector<Range> out;
  const auto add = [&](Range places) {
    if (places.size() <= 0) return;
    if (!out.empty() && out.back().end == places.begin) {
      out.back().end = places.end;
    } else {
      out.push_back(places);
    }
  };
  for (const Run& run : runs_at(key_order, {0, all_keys})) {
    for (const Range& range : seen) {
      const Range both = overlap(range, run.positions);
      if (both.size() == 0) continue;
      const std::int64_t begin = run.offset + both.begin - run.positions.begin;
      const Range places{begin, begin + both.size()};
      add({places.begin, std::min(places.end, held.begin)});
      add({std::max(places.begin, held.end), places.end});
    }
  }
  return out;
}

}  // namespace intarsia::context
