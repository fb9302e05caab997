// The last moves of tensors, so that a move that was just made is not made again.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "intarsia/layout.h"
#include "tensor/core/pieces.h"

namespace intarsia {

/// A ring of the last few moves. A move holds until any tensor of the world is written to: writes
/// are counted, so what is remembered is the same on all ranks. THREADS: any.
class RecentMoves {
 public:
  /// How many writes there were. Read before a move is made, and given to `add` after it.
  std::uint64_t writes() const { return writes_; }
  void note_write() { ++writes_; }

  /// The pieces of a tensor in another layout, if they were made since the last write.
  std::optional<Pieces> find(const void* tensor, const Layout& to) const;
  void add(const void* tensor, const Layout& to, const Pieces& pieces, std::uint64_t writes);
  /// The tensor is gone, or has other pieces.
  void forget(const void* tensor);

 private:
  struct Move {
    const void* tensor = nullptr;
    std::uint64_t writes = 0;
    Layout to;
    Pieces pieces;
  };
  static constexpr std::size_t kMoves = 4;

  mutable std::mutex mutex_;
  std::vector<Move> moves_;
  std::size_t next_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;
};

}  // namespace intarsia
