#include "intarsia/packing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "pack";

/// Pairs of a causal document.
double work_of(std::int64_t length) {
  return 0.5 * static_cast<double>(length) * static_cast<double>(length + 1);
}

/// Which samples are in which sequence.
std::vector<std::vector<std::int64_t>> bins_of(std::span<const std::int64_t> lengths,
                                               std::int64_t capacity) {
  std::vector<std::int64_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), std::int64_t{0});
  const auto length = [&](std::int64_t i) { return lengths[static_cast<std::size_t>(i)]; };
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](std::int64_t a, std::int64_t b) { return length(a) > length(b); });
  std::vector<std::vector<std::int64_t>> out;
  std::vector<std::int64_t> room;
  for (const std::int64_t sample : by_length) {
    std::size_t to = 0;
    while (to < room.size() && room[to] < length(sample)) ++to;
    if (to == room.size()) {
      out.emplace_back();
      room.push_back(capacity);
    }
    out[to].push_back(sample);
    room[to] -= length(sample);
  }
  return out;
}

/// Deals the documents of one sequence to ranks of equal room.
class Dealing {
 public:
  Dealing(std::int64_t ranks, std::int64_t room)
      : runs_(static_cast<std::size_t>(ranks)), ranks_(static_cast<std::size_t>(ranks)) {
    for (Rank& rank : ranks_) rank.room = room;
  }

  /// On one rank if it has no more work than that, and some rank has room; else over as many ranks
  /// as its work asks for.
  void deal(Range document, double most) {
    const double parts = most > 0 ? work_of(document.size()) / most : 0;
    if (parts <= 1 && put_on_one(document)) return;
    const auto ranks = static_cast<double>(ranks_.size());
    spread(document, static_cast<std::size_t>(std::clamp(std::ceil(parts), 1.0, ranks)));
  }

  /// The most work of a rank, in parts of the mean.
  double uneven() const {
    double most = 0;
    double all = 0;
    for (const Rank& rank : ranks_) {
      most = std::max(most, rank.work);
      all += rank.work;
    }
    return all > 0 ? most * static_cast<double>(ranks_.size()) / all : 1;
  }

  SequenceOrder order() {
    std::vector<Range> all;
    for (auto& runs : runs_) {
      std::sort(runs.begin(), runs.end(),
                [](const Range& a, const Range& b) { return a.begin < b.begin; });
      all.insert(all.end(), runs.begin(), runs.end());
    }
    return SequenceOrder::of(std::move(all));
  }

 private:
  /// On one rank: the one with the least work of those that have room. False if none has.
  bool put_on_one(Range document) {
    std::size_t to = ranks_.size();
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].room < document.size()) continue;
      if (to == ranks_.size() || ranks_[r].work < ranks_[to].work) to = r;
    }
    if (to == ranks_.size()) return false;
    put(to, document, work_of(document.size()));
    return true;
  }

  /// Over several: a run from the front and one from the back for each, so that all have as much
  /// of it. They are those with the least work, and have room for their share.
  void spread(Range document, std::size_t count) {
    std::vector<std::size_t> to = least_loaded();
    for (;; ++count) {
      std::int64_t room = 0;
      for (std::size_t i = 0; i < std::min(count, to.size()); ++i) room += ranks_[to[i]].room;
      if (room >= document.size() || count >= to.size()) break;
    }
    to.resize(std::min(count, to.size()));
    const std::vector<std::int64_t> shares = shares_of(document.size(), to);
    std::int64_t front = document.begin;
    std::int64_t back = document.end;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::int64_t head = shares[i] / 2;
      const std::int64_t tail = shares[i] - head;
      put(to[i], {front, front + head}, work_between(document, front, front + head));
      put(to[i], {back - tail, back}, work_between(document, back - tail, back));
      front += head;
      back -= tail;
    }
  }

  struct Rank {
    std::int64_t room = 0;
    double work = 0;
  };

  static double work_between(Range document, std::int64_t begin, std::int64_t end) {
    return work_of(end - document.begin) - work_of(begin - document.begin);
  }

  void put(std::size_t rank, Range run, double work) {
    if (run.size() == 0) return;
    runs_[rank].push_back(run);
    ranks_[rank].room -= run.size();
    ranks_[rank].work += work;
  }

  std::vector<std::size_t> least_loaded() const {
    std::vector<std::size_t> out;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].room > 0) out.push_back(r);
    }
    std::stable_sort(out.begin(), out.end(),
                     [&](std::size_t a, std::size_t b) { return ranks_[a].work < ranks_[b].work; });
    return out;
  }

  /// Equal shares, but none beyond the room of a rank.
  std::vector<std::int64_t> shares_of(std::int64_t size, const std::vector<std::size_t>& to) const {
    std::vector<std::int64_t> out(to.size(), 0);
    std::int64_t left = size;
    while (left > 0) {
      std::int64_t open = 0;
      for (std::size_t i = 0; i < to.size(); ++i) open += ranks_[to[i]].room > out[i] ? 1 : 0;
      const std::int64_t each = std::max<std::int64_t>(1, left / open);
      for (std::size_t i = 0; i < to.size() && left > 0; ++i) {
        const std::int64_t more = std::min({each, left, ranks_[to[i]].room - out[i]});
        out[i] += more;
        left -= more;
      }
    }
    return out;
  }

  std::vector<std::vector<Range>> runs_;
  std::vector<Rank> ranks_;
};

Packing packed(std::vector<std::int64_t> samples, std::span<const std::int64_t> lengths,
               std::int64_t ranks, double uneven) {
  Packing out;
  std::vector<Range> documents;
  double work = 0;
  for (const std::int64_t sample : samples) {  // the longest first
    const std::int64_t length = lengths[static_cast<std::size_t>(sample)];
    documents.push_back({out.size, out.size + length});
    out.documents.push_back(out.size);
    out.size += length;
    work += work_of(length);
  }
  out.samples = std::move(samples);
  out.padding = (ranks - out.size % ranks) % ranks;
  if (out.padding > 0) {
    out.documents.push_back(out.size);
    documents.push_back({out.size, out.size + out.padding});
    out.size += out.padding;
  }
  const double fair = work / static_cast<double>(ranks);
  Dealing best(ranks, out.size / ranks);
  for (double part = 1; part > 1.0 / 64; part /= 2) {
    Dealing dealing(ranks, out.size / ranks);
    for (const Range& document : documents) dealing.deal(document, part * fair);
    if (part == 1 || dealing.uneven() < best.uneven()) best = dealing;
    if (best.uneven() <= uneven) break;
  }
  out.order = best.order();
  return out;
}

}  // namespace

std::vector<Packing> pack(std::span<const std::int64_t> lengths, const PackOptions& options) {
  if (options.ranks <= 0 || options.tokens <= 0) {
    fail<ValueError>(kWhere, "sequences for ", options.ranks, " ranks of ", options.tokens,
                     " tokens; both are positive");
  }
  const std::int64_t capacity = options.ranks * options.tokens;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > 0 && lengths[i] <= capacity) continue;
    fail<ValueError>(kWhere, "sample ", i, " has ", lengths[i], " tokens, and a sequence over ",
                     options.ranks, " ranks has room for 1 to ", capacity);
  }
  std::vector<Packing> out;
  for (auto& samples : bins_of(lengths, capacity)) {
    out.push_back(packed(std::move(samples), lengths, options.ranks, options.uneven));
  }
  return out;
}

}  // namespace intarsia
