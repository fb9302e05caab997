// Packing: samples of different lengths in sequences of one length, spread over ranks by their
// work.
//
// A packed sequence is one row in which samples follow each other as documents, sharded over all
// ranks of the data and context axes together. Short samples stand on one rank as they are, and
// nothing of them is sent; long ones are spread over as many ranks as their work needs. All ranks
// hold as many tokens, so what treats positions apart is even; attention is as even as the samples
// allow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "intarsia/attention_mask.h"
#include "intarsia/sequence_order.h"

namespace intarsia {

struct PackOptions {
  /// Over which a sequence is sharded: all ranks of the data and context axes.
  std::int64_t ranks = 1;
  /// The most tokens that a rank holds. No sample is longer than ranks * tokens.
  std::int64_t tokens = 0;
  /// How much more work than the mean a rank may have. Samples are spread over more ranks than
  /// their own work asks for, where it is not reached otherwise.
  double uneven = 1.1;
};

/// One packed sequence.
struct Packing {
  /// Which samples are in it, in the order in which they follow each other.
  std::vector<std::int64_t> samples;
  /// Where each begins, and, if there is padding, where that begins: the last document.
  std::vector<std::int64_t> documents;
  /// With padding: a multiple of the ranks.
  std::int64_t size = 0;
  /// How many tokens at the end are padding: fewer than there are ranks.
  std::int64_t padding = 0;
  /// Which positions stand on which rank.
  SequenceOrder order;

  /// Nothing of other documents; causal inside of each.
  AttentionMask mask() const { return AttentionMask::causal().documents(documents); }
  friend bool operator==(const Packing&, const Packing&) = default;
};

/// Spreads samples of these lengths over as few sequences as they need, nearly: the longest first,
/// each into the first sequence with room. The same on all ranks; sends nothing.
/// REQUIRES: lengths are positive, and no sample is longer than a sequence may be.
std::vector<Packing> pack(std::span<const std::int64_t> lengths, const PackOptions& options);

}  // namespace intarsia
