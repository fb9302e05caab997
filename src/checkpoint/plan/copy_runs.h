// CopyRuns: the elements that two parts of a tensor share, as contiguous runs of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/plan/part.h"

namespace intarsia::checkpoint {

/// Bytes that are contiguous in both parts.
struct CopyRun {
  std::uint64_t from = 0;  ///< in the source, counted from its beginning
  std::uint64_t to = 0;    ///< in the destination
  std::uint64_t bytes = 0;
  friend bool operator==(const CopyRun&, const CopyRun&) = default;
};

/// Walks over what the source has of the destination, in the order of the source's bytes. Both are
/// stored with the last dimension fastest. Takes a few bytes, however many runs there are.
class CopyRuns {
 public:
  CopyRuns(const Part& source, const Part& destination, std::int64_t element_bytes);

  /// How many elements both have.
  std::int64_t numel() const { return numel_; }
  /// The run at hand; nullopt at the end.
  std::optional<CopyRun> run() const;
  /// Goes on, by `bytes` of the run at hand or to the next. REQUIRES: a run; not more than it has.
  void advance(std::uint64_t bytes);

 private:
  /// Indices of one dimension that both have: `size` from local ones on.
  struct Span {
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::int64_t size = 0;
  };
  static std::vector<Span> spans(const std::vector<Range>& source,
                                 const std::vector<Range>& destination);
  void place();

  /// Dimensions before the contiguous block, and the place of the walk in each of them.
  struct Dim {
    std::vector<Span> spans;
    std::uint64_t from_stride = 0;
    std::uint64_t to_stride = 0;
    std::size_t span = 0;
    std::int64_t index = 0;
  };
  std::vector<Dim> dims_;  // the last one is walked a span at a time
  std::int64_t numel_ = 1;
  std::uint64_t done_ = 0;  // bytes of the run at hand
  bool at_end_ = false;
  CopyRun run_;
};

}  // namespace intarsia::checkpoint
