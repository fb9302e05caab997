#include "tensor/core/recent_moves.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace intarsia {
namespace {

const Layout kRows = Layout::parse("[a=2] S(0)");
const Layout kColumns = Layout::parse("[a=2] S(1)");

/// Moves are those of five tensors, of which only the addresses are looked at.
struct Moves {
  void add(std::size_t tensor, const Layout& to, double value) {
    moves.add(&tensors[tensor], to, {at::scalar_tensor(value)}, moves.writes());
  }
  /// The number in the piece that was remembered, or -1.
  double find(std::size_t tensor, const Layout& to) const {
    const auto found = moves.find(&tensors[tensor], to);
    return found ? found->front().item<double>() : -1;
  }
  RecentMoves moves = {};
  char tensors[5] = {};
};

TEST(RecentMoves, AMoveIsFoundByTensorAndLayout) {
  Moves m;
  EXPECT_EQ(m.find(0, kRows), -1);
  m.add(0, kRows, 1);
  m.add(0, kColumns, 2);
  m.add(1, kRows, 3);
  EXPECT_EQ(m.find(0, kRows), 1);
  EXPECT_EQ(m.find(0, kColumns), 2);
  EXPECT_EQ(m.find(1, kRows), 3);
  EXPECT_EQ(m.find(1, kColumns), -1);
}

TEST(RecentMoves, AMoveHoldsUntilTheNextWrite) {
  Moves m;
  m.add(0, kRows, 1);
  m.moves.note_write();
  EXPECT_EQ(m.moves.writes(), 1U);
  EXPECT_EQ(m.find(0, kRows), -1);
  m.add(0, kRows, 2);
  EXPECT_EQ(m.find(0, kRows), 2);
}

TEST(RecentMoves, AWriteDuringTheMoveCounts) {
  Moves m;
  const std::uint64_t before = m.moves.writes();
  m.moves.note_write();  // while the pieces were under way
  m.moves.add(&m.tensors[0], kRows, {at::scalar_tensor(1.0)}, before);
  EXPECT_EQ(m.find(0, kRows), -1);
}

TEST(RecentMoves, TheLastFourAreKept) {
  Moves m;
  for (std::size_t i = 0; i < 5; ++i) m.add(i, kRows, static_cast<double>(i));
  EXPECT_EQ(m.find(0, kRows), -1);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(m.find(i, kRows), static_cast<double>(i));
}

TEST(RecentMoves, ForgetsAllMovesOfOneTensor) {
  Moves m;
  m.add(0, kRows, 1);
  m.add(1, kRows, 2);
  const at::Tensor piece = at::ones({2});
  m.moves.add(&m.tensors[0], kColumns, {piece}, m.moves.writes());
  EXPECT_EQ(piece.use_count(), 2U);
  m.moves.forget(&m.tensors[0]);
  EXPECT_EQ(m.find(0, kRows), -1);
  EXPECT_EQ(m.find(0, kColumns), -1);
  EXPECT_EQ(m.find(1, kRows), 2);
  EXPECT_EQ(piece.use_count(), 1U) << "its memory is free";
  m.moves.forget(&m.tensors[4]);  // of which nothing is known
  EXPECT_EQ(m.find(1, kRows), 2);
}

TEST(RecentMoves, RanksOutsideTheMeshRememberNoPieces) {
  Moves m;
  m.moves.add(&m.tensors[0], kRows, {}, m.moves.writes());
  const auto found = m.moves.find(&m.tensors[0], kRows);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->size(), 0U);
}

}  // namespace
}  // namespace intarsia
