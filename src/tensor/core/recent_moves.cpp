#include "tensor/core/recent_moves.h"

#include <utility>

namespace intarsia {

std::optional<Pieces> RecentMoves::find(const void* tensor, const Layout& to) const {
  const std::uint64_t now = writes_;
  const std::scoped_lock lock(mutex_);
  for (const Move& m : moves_) {
    if (m.tensor == tensor && m.writes == now && m.to == to) return m.pieces;
  }
  return std::nullopt;
}

void RecentMoves::add(const void* tensor, const Layout& to, const Pieces& pieces,
                      std::uint64_t writes) {
  Move dropped;  // destroyed after the lock is released
  const std::scoped_lock lock(mutex_);
  if (moves_.empty()) moves_.resize(kMoves);
  dropped = std::exchange(moves_[next_], Move{tensor, writes, to, pieces});
  next_ = (next_ + 1) % kMoves;
}

void RecentMoves::forget(const void* tensor) {
  std::vector<Move> dropped;  // destroyed after the lock is released
  const std::scoped_lock lock(mutex_);
  for (Move& m : moves_) {
    if (m.tensor == tensor) dropped.push_back(std::exchange(m, Move{}));
  }
}

}  // namespace intarsia
