// AttentionMask: which keys a query sees, as a description.
//
// A description is small whatever the sequence is, the same on all ranks, and speaks of positions
// in the full sequence, so it holds for any shard of it. Nobody makes a mask of queries x keys:
// from the description follow which keys a rank needs, which blocks are empty or full, and the
// masks of the few blocks that are neither.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/boxes.h"

namespace intarsia {

class Cursor;

/// A value. Each function gives a mask that restricts or widens the one it is called on:
///
///     AttentionMask::causal();
///     AttentionMask::window(1023, 0).sinks(4);            // the last 1,024 keys, and the first 4
///     AttentionMask::causal().documents({0, 700, 1500});  // packed: three documents
class AttentionMask {
 public:
  /// Every query sees every key.
  AttentionMask() = default;
  static AttentionMask all() { return {}; }
  /// Key k is seen by query q if k <= q.
  static AttentionMask causal();
  /// Key k is seen by query q if q - before <= k <= q + after. REQUIRES: neither is negative.
  static AttentionMask window(std::int64_t before, std::int64_t after = 0);
  /// What each query sees, in sorted runs of keys that do not touch: for masks that have no
  /// description of another kind. REQUIRES: runs inside of `keys`.
  static AttentionMask listed(std::int64_t keys, const std::vector<std::vector<Range>>& queries);
  /// The same for each sample of the batch. REQUIRES: as many queries in each.
  static AttentionMask listed_of_samples(
      std::int64_t keys, const std::vector<std::vector<std::vector<Range>>>& samples);

  /// Also the first keys, of each document if there are several, for every query.
  AttentionMask prefix(std::int64_t keys) const;
  /// Also the first keys, however far back they are, for queries q with k <= q + after.
  AttentionMask sinks(std::int64_t keys) const;
  /// Of what it sees, but for prefix and sinks, only keys k with q - before <= k <= q + after.
  AttentionMask within(std::int64_t before, std::int64_t after) const;
  /// Nothing of other documents, which begin at these positions. REQUIRES: they ascend from 0.
  AttentionMask documents(std::vector<std::int64_t> starts) const;
  /// The same for each sample of the batch.
  AttentionMask documents_of_samples(std::vector<std::vector<std::int64_t>> starts) const;
  /// Query q stands at the position q + offset of the keys. For the last queries of a sequence:
  /// keys - queries.
  AttentionMask offset(std::int64_t offset) const;

  /// The same mask by a description of another kind, where one is found for a listed one: all,
  /// causal, a window, with sinks, documents or an offset.
  AttentionMask recognised() const;

  /// `causal`, `window(1023,0)+sinks(4)`, `causal+documents(0,700,1500)`, with `;` between samples;
  /// a listed one by the number of keys and the runs of each query, `listed(4:0:1,3:4;;0:4)`, with
  /// `|` between samples.
  std::string to_string() const;
  /// Reads what to_string wrote. ValueError that shows where it fails.
  static AttentionMask parse(std::string_view text);
  /// The text, but for messages: its begin, if it is long.
  std::string short_text() const;
  /// Equal for equal masks; found at once for listed ones too.
  std::uint64_t hash() const;

  /// How many samples have a description of their own; 1 where one is for all.
  std::int64_t samples() const;
  /// Where documents begin: of each sample, or once for all; nothing where there are none.
  const std::vector<std::vector<std::int64_t>>& document_starts() const { return documents_; }
  /// The keys that a query sees: sorted runs that do not touch, replacing what `out` holds.
  /// REQUIRES: check() passed.
  void keys_of(std::int64_t sample, std::int64_t query, std::int64_t keys,
               std::vector<Range>& out) const;
  bool sees(std::int64_t sample, std::int64_t query, std::int64_t key) const;

  /// ValueError, which begins with `where`, if it is not one for such sizes.
  void check(std::string_view where, std::int64_t samples, std::int64_t queries,
             std::int64_t keys) const;

  friend bool operator==(const AttentionMask&, const AttentionMask&);

 private:
  struct Listed {
    std::int64_t samples = 0;
    std::int64_t queries = 0;
    std::int64_t keys = 0;
    std::vector<std::size_t> first;  // by sample and query, and the end
    std::vector<Range> runs;
    std::uint64_t hash = 0;  // of all that
    friend bool operator==(const Listed&, const Listed&) = default;
  };

  std::string listed_text() const;
  AttentionMask listed_within(std::int64_t before, std::int64_t after) const;
  static AttentionMask parse_listed(Cursor& cursor);
  /// Itself, if it is not listed.
  AttentionMask described(std::string_view asked) const;
  /// Whether every query of every sample sees the same by another mask.
  bool agrees_with(const AttentionMask& other) const;
  Range document_of(std::int64_t sample, std::int64_t position, std::int64_t keys) const;

  std::optional<std::int64_t> before_;
  std::optional<std::int64_t> after_;
  std::int64_t prefix_ = 0;
  std::int64_t sinks_ = 0;
  std::int64_t offset_ = 0;
  std::vector<std::vector<std::int64_t>> documents_;  // by sample; one for all; or none
  std::shared_ptr<const Listed> listed_;
};

}  // namespace intarsia
