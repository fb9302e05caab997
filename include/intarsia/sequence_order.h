// SequenceOrder: in which order positions of a sequence stand in a tensor, so that shards of it
// have equal work.
//
// Under a causal mask the last of P contiguous shards has nearly twice the mean work. So a sequence
// may be stored in another order and sharded as ever: each rank then holds early and late
// positions. What goes along the sequence (tokens, positions, labels) is put in that order before
// it is sharded; attention is told the order, and masks go on speaking of positions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/attention_mask.h"
#include "intarsia/boxes.h"

namespace intarsia {

/// A value. `lengths` are those of the shards, rank by rank: `lengths_along`, or shard_lengths.
class SequenceOrder {
 public:
  /// Contiguous: position i stands at place i, in a sequence of any length.
  SequenceOrder() = default;
  /// Each rank holds a run from the front and one from the back.
  static SequenceOrder head_tail(std::span<const std::int64_t> lengths);
  /// The same inside of each document, of which every rank gets its share.
  static SequenceOrder head_tail(std::span<const std::int64_t> lengths,
                                 std::span<const std::int64_t> documents);
  /// Blocks of `block` positions go to ranks so that their work under the mask is even: those with
  /// the most work first, each to the rank with the least. Kernels leave out blocks of keys of
  /// which nothing is seen, and may compute the others in full, so work is the pairs that see each
  /// other and, as much again, all pairs of the blocks in which some do. 0: a block of 1/32 of a
  /// shard.
  static SequenceOrder balanced(std::span<const std::int64_t> lengths, const AttentionMask& mask,
                                std::int64_t block = 0);
  /// Positions as they follow each other. REQUIRES: each position once, from 0 on.
  static SequenceOrder of(std::vector<Range> runs);

  bool is_contiguous() const { return runs_.empty(); }
  /// How many positions it orders; 0 for the contiguous one, which orders any number.
  std::int64_t size() const;
  /// The positions that stand at these places, as runs in their order.
  std::vector<Range> runs(Range places) const;
  /// The position at each place, and the place of each position. REQUIRES: `size` is its own.
  std::vector<std::int64_t> positions(std::int64_t size) const;
  std::vector<std::int64_t> places(std::int64_t size) const;

  /// `contiguous`, or runs as `0:4,12:16,4:12`; parse reads both.
  std::string to_string() const;
  static SequenceOrder parse(std::string_view text);

  /// ValueError, which begins with `where`, if it orders another number of positions.
  void check(std::string_view where, std::int64_t size) const;

  friend bool operator==(const SequenceOrder&, const SequenceOrder&) = default;

 private:
  std::vector<Range> runs_;  // no two of which could be one
};

/// How long shards of a sequence are over `ranks` ranks of one axis.
std::vector<std::int64_t> shard_lengths(std::int64_t size, std::int64_t ranks);

/// The work of each rank: the pairs of its queries and of any key that see each other, over all
/// samples that the mask describes.
std::vector<std::int64_t> attention_work(const AttentionMask& mask, const SequenceOrder& order,
                                         std::span<const std::int64_t> lengths);

}  // namespace intarsia
