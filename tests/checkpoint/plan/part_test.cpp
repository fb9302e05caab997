#include "checkpoint/plan/part.h"

#include <gtest/gtest.h>

namespace intarsia::checkpoint {
namespace {

Boxes held(const char* layout, const Shape& shape, const Coordinate& at) {
  return boxes(Layout::parse(layout), shape, at);
}

TEST(Part, IsRowsOfAPiece) {
  const Boxes piece = held("[a=2] S(0)", {8, 3}, {1});
  EXPECT_EQ(part_of(piece).to_string(), "[4,8)x[0,3)");
  EXPECT_EQ(part_of(piece, {1, 3}).to_string(), "[5,7)x[0,3)");
  EXPECT_EQ(part_of(piece, {1, 3}).shape, (Shape{2, 3}));
  EXPECT_FALSE(part_of(piece).covers({8, 3}));
  EXPECT_TRUE(part_of(held("[a=2] R", {8, 3}, {1})).covers({8, 3}));
}

TEST(Part, RowsOfBlocksMayBeInSeveralRuns) {
  const Boxes piece = held("[a=2] SS(0,2)", {8}, {1});
  EXPECT_EQ(part_of(piece).to_string(), "[2,4)+[6,8)");
  EXPECT_EQ(part_of(piece, {1, 3}).to_string(), "[3,4)+[6,7)");
  EXPECT_EQ(part_of(piece, {2, 4}).to_string(), "[6,8)");
}

TEST(Part, RowsAreAlongTheFirstDimensionThatIsLonger) {
  EXPECT_EQ(row_dim({1, 1, 5, 2}), 2U);
  EXPECT_EQ(row_dim({1, 1}), 0U);
  EXPECT_EQ(row_dim({}), 0U);
  EXPECT_EQ(part_of(held("[a=1] R", {1, 6, 2}, {0}), {2, 4}).to_string(), "[0,1)x[2,4)x[0,2)");
}

TEST(Part, MayBeEmptyOrAScalar) {
  EXPECT_EQ(part_of(held("[a=4] S(0)", {3}, {3})).numel(), 0);
  EXPECT_EQ(part_of(held("[a=4] R", {}, {3})).to_string(), "scalar");
  EXPECT_EQ(part_of(held("[a=4] R", {}, {3})).numel(), 1);
}

}  // namespace
}  // namespace intarsia::checkpoint
