#include "intarsia/sequence_order.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "context/mask/tiles.h"
#include "intarsia/error.h"
#include "layout/chunk.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "SequenceOrder";
constexpr std::int64_t kBlocksPerShard = 32;

using Lengths = std::vector<std::int64_t>;

std::int64_t sum(std::span<const std::int64_t> lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

/// Appends a run to those of a rank, joined with the last where it goes on from it.
void append(std::vector<Range>& out, Range run) {
  if (run.size() == 0) return;
  if (!out.empty() && out.back().end == run.begin) {
    out.back().end = run.end;
  } else {
    out.push_back(run);
  }
}

/// Gives each rank its share of a range: half from the front, in the order of ranks, and the rest
/// from the back. `more_in_front`: of an odd share the larger half is in front.
void deal_head_tail(std::vector<std::vector<Range>>& out, Range range, const Lengths& shares,
                    bool more_in_front) {
  std::int64_t front = range.begin;
  std::int64_t back = range.end;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    const std::int64_t head = (shares[r] + (more_in_front ? 1 : 0)) / 2;
    append(out[r], {front, front + head});
    front += head;
  }
  for (std::size_t r = 0; r < shares.size(); ++r) {
    const std::int64_t tail = shares[r] - (shares[r] + (more_in_front ? 1 : 0)) / 2;
    append(out[r], {back - tail, back});
    back -= tail;
  }
}

/// `count` among ranks in proportion to the room they have, none more than that. REQUIRES: there is
/// room.
Lengths shares_of(std::int64_t count, const Lengths& room) {
  const std::int64_t all = sum(room);
  Lengths out;
  std::vector<std::pair<std::int64_t, std::size_t>> rest;  // what was rounded off
  for (std::size_t r = 0; r < room.size(); ++r) {
    out.push_back(all == 0 ? 0 : count * room[r] / all);
    rest.emplace_back(all == 0 ? 0 : count * room[r] % all, r);
  }
  std::int64_t left = count - sum(out);
  std::stable_sort(rest.begin(), rest.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  while (left > 0) {
    for (const auto& [unused, r] : rest) {
      if (left == 0 || out[r] == room[r]) continue;
      ++out[r];
      --left;
    }
  }
  return out;
}

SequenceOrder joined(std::vector<std::vector<Range>> ranks) {
  std::vector<Range> all;
  for (auto& runs : ranks) {
    std::sort(runs.begin(), runs.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (const Range& run : runs) append(all, run);
  }
  return SequenceOrder::of(std::move(all));
}

}  // namespace

SequenceOrder SequenceOrder::head_tail(std::span<const std::int64_t> lengths) {
  std::vector<std::vector<Range>> ranks(lengths.size());
  deal_head_tail(ranks, {0, sum(lengths)}, {lengths.begin(), lengths.end()}, false);
  return joined(std::move(ranks));
}

SequenceOrder SequenceOrder::head_tail(std::span<const std::int64_t> lengths,
                                       std::span<const std::int64_t> documents) {
  const std::int64_t size = sum(lengths);
  if (documents.empty()) return head_tail(lengths);
  std::vector<std::vector<Range>> ranks(lengths.size());
  Lengths room(lengths.begin(), lengths.end());
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const std::int64_t end = d + 1 < documents.size() ? documents[d + 1] : size;
    if (documents[d] >= end || end > size || (d == 0 && documents[0] != 0)) {
      fail<ValueError>(kWhere, "documents(", join(documents), ") must ascend from 0 to below ",
                       size);
    }
    const Lengths shares = shares_of(end - documents[d], room);
    deal_head_tail(ranks, {documents[d], end}, shares, d % 2 == 1);
    for (std::size_t r = 0; r < room.size(); ++r) room[r] -= shares[r];
  }
  return joined(std::move(ranks));
}

SequenceOrder SequenceOrder::balanced(std::span<const std::int64_t> lengths,
                                      const AttentionMask& mask, std::int64_t block) {
  const std::int64_t size = sum(lengths);
  const auto ranks = static_cast<std::int64_t>(lengths.size());
  if (block <= 0) block = std::max<std::int64_t>(1, size / (ranks * kBlocksPerShard));
  struct Block {
    Range range;
    std::int64_t work = 0;
  };
  std::vector<Block> blocks;
  for (std::int64_t begin = 0; begin < size; begin += block) {
    Block each{{begin, std::min(begin + block, size)}};
    for (std::int64_t s = 0; s < mask.samples(); ++s) {
      const std::int64_t seen = context::blocks_seen(mask, s, each.range, size, block);
      each.work += context::pairs_of(mask, s, each.range, {0, size}, size) + seen * block * block;
    }
    blocks.push_back(each);
  }
  std::stable_sort(blocks.begin(), blocks.end(),
                   [](const Block& a, const Block& b) { return a.work > b.work; });
  std::vector<std::vector<Range>> out(lengths.size());
  Lengths room(lengths.begin(), lengths.end());
  Lengths work(lengths.size(), 0);
  for (Block each : blocks) {
    while (each.range.size() > 0) {
      std::size_t to = room.size();
      for (std::size_t r = 0; r < room.size(); ++r) {
        if (room[r] > 0 && (to == room.size() || work[r] < work[to])) to = r;
      }
      const std::int64_t taken = std::min(room[to], each.range.size());
      out[to].push_back({each.range.begin, each.range.begin + taken});
      work[to] += each.work * taken / each.range.size();
      each.work -= each.work * taken / each.range.size();
      each.range.begin += taken;
      room[to] -= taken;
    }
  }
  return joined(std::move(out));
}

SequenceOrder SequenceOrder::of(std::vector<Range> runs) {
  std::vector<Range> sorted = runs;
  std::sort(sorted.begin(), sorted.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::int64_t next = 0;
  for (const Range& run : sorted) {
    if (run.size() <= 0 || run.begin != next) {
      fail<ValueError>(kWhere, "the run ", run, " of ", join(runs), " does not go on from ", next,
                       ": each position must be there once");
    }
    next = run.end;
  }
  SequenceOrder out;
  for (const Range& run : runs) append(out.runs_, run);
  if (out.runs_.size() == 1) out.runs_.clear();
  return out;
}

std::int64_t SequenceOrder::size() const {
  std::int64_t out = 0;
  for (const Range& run : runs_) out += run.size();
  return out;
}

std::vector<Range> SequenceOrder::runs(Range places) const {
  if (is_contiguous()) return places.size() > 0 ? std::vector<Range>{places} : std::vector<Range>();
  std::vector<Range> out;
  std::int64_t place = 0;
  for (const Range& run : runs_) {
    const Range both = context::overlap({place, place + run.size()}, places);
    if (both.size() > 0) {
      out.push_back({run.begin + both.begin - place, run.begin + both.end - place});
    }
    place += run.size();
  }
  return out;
}

std::vector<std::int64_t> SequenceOrder::positions(std::int64_t size) const {
  check(kWhere, size);
  std::vector<std::int64_t> out;
  for (const Range& run : runs({0, size})) {
    for (std::int64_t i = run.begin; i < run.end; ++i) out.push_back(i);
  }
  return out;
}

std::vector<std::int64_t> SequenceOrder::places(std::int64_t size) const {
  const auto there = positions(size);
  std::vector<std::int64_t> out(there.size());
  for (std::size_t i = 0; i < there.size(); ++i) {
    out[static_cast<std::size_t>(there[i])] = static_cast<std::int64_t>(i);
  }
  return out;
}

std::string SequenceOrder::to_string() const {
  if (is_contiguous()) return "contiguous";
  std::vector<std::string> out;
  for (const Range& run : runs_) out.push_back(concat(run.begin, ":", run.end));
  return join(out);
}

SequenceOrder SequenceOrder::parse(std::string_view text) {
  Cursor cursor(kWhere, text);
  if (cursor.accept("contiguous")) {
    cursor.end();
    return {};
  }
  std::vector<Range> runs;
  do {
    Range run;
    run.begin = cursor.integer();
    cursor.expect(":");
    run.end = cursor.integer();
    runs.push_back(run);
  } while (cursor.accept(","));
  cursor.end();
  return of(std::move(runs));
}

void SequenceOrder::check(std::string_view where, std::int64_t size) const {
  if (is_contiguous() || this->size() == size) return;
  fail<ValueError>(where, "the order is one of ", this->size(), " positions, and the sequence has ",
                   size);
}

std::vector<std::int64_t> shard_lengths(std::int64_t size, std::int64_t ranks) {
  Lengths out;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const Range piece = chunk(size, ranks, r);
    out.push_back(piece.size());
  }
  return out;
}

std::vector<std::int64_t> attention_work(const AttentionMask& mask, const SequenceOrder& order,
                                         std::span<const std::int64_t> lengths) {
  const std::int64_t size = sum(lengths);
  order.check(kWhere, size);
  mask.check(kWhere, mask.samples(), size, size);
  Lengths out;
  std::int64_t place = 0;
  for (const std::int64_t length : lengths) {
    std::int64_t work = 0;
    for (const Range& run : order.runs({place, place + length})) {
      for (std::int64_t s = 0; s < mask.samples(); ++s) {
        work += context::pairs_of(mask, s, run, {0, size}, size);
      }
    }
    out.push_back(work);
    place += length;
  }
  return out;
}

}  // namespace intarsia
