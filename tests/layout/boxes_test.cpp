#include "intarsia/boxes.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

std::string held(const char* layout, const Shape& shape, const Coordinate& at) {
  return boxes(Layout::parse(layout), shape, at).to_string();
}

TEST(Boxes, ChunksLikeTorch) {
  // torch.arange(5).chunk(4): [0,1] [2,3] [4], and nothing for the fourth.
  EXPECT_EQ(held("[a=4] S(0)", {5}, {0}), "[0,2)");
  EXPECT_EQ(held("[a=4] S(0)", {5}, {2}), "[4,5)");
  EXPECT_EQ(held("[a=4] S(0)", {5}, {3}), "[)");
}

TEST(Boxes, CutsInTheOrderOfTheLayout) {
  EXPECT_EQ(held("[a=2,b=2] S(0),S(0)", {8}, {0, 1}), "[2,4)");
  EXPECT_EQ(held("[a=2,b=2] S(0),S(0) | 0:b>a", {8}, {0, 1}), "[4,6)");
}

TEST(Boxes, StridedHoldsAChunkOfEveryBlock) {
  EXPECT_EQ(held("[a=2] SS(0,2)", {8}, {0}), "[0,2)+[4,6)");
  // 9 in two blocks, 5 and 4; their chunks over 4 ranks: 2 2 1 0 and 1 1 1 1.
  EXPECT_EQ(held("[a=4] SS(0,2)", {9}, {0}), "[0,2)+[5,6)");
  EXPECT_EQ(held("[a=4] SS(0,2)", {9}, {3}), "[8,9)");
}

TEST(Boxes, NeighbouringRunsAreOne) { EXPECT_EQ(held("[a=1] SS(0,4)", {8}, {0}), "[0,8)"); }

TEST(Boxes, AreAllCombinationsOfRuns) {
  const Boxes b = boxes(Layout::parse("[a=2,b=2] SS(0,2),SS(1,2)"), Shape{4, 4}, {0, 1});
  EXPECT_EQ(b.to_string(), "[0,1)+[2,3)x[1,2)+[3,4)");
  EXPECT_EQ(b.count(), 4);
  EXPECT_EQ(b.box(1), (Box{{0, 1}, {3, 4}}));
  EXPECT_EQ(b.box(2), (Box{{2, 3}, {1, 2}}));
  EXPECT_EQ(b.local_shape(), (Shape{2, 2}));
  EXPECT_EQ(b.offset(), (Shape{0, 1}));
}

TEST(Boxes, PartialAndReplicateHoldEverything) {
  EXPECT_EQ(held("[a=2,b=2] P(sum),R", {3, 2}, {1, 1}), "[0,3)x[0,2)");
}

TEST(Boxes, ScalarsAndEmptyDims) {
  EXPECT_EQ(held("[a=2] R", {}, {1}), "scalar");
  EXPECT_EQ(boxes(Layout::parse("[a=2] R"), Shape{}, {1}).count(), 1);
  const Boxes empty = boxes(Layout::parse("[a=2] S(0)"), Shape{0, 4}, {1});
  EXPECT_EQ(empty.local_shape(), (Shape{0, 4}));
  EXPECT_EQ(empty.count(), 0);
  EXPECT_EQ(empty.numel(), 0);
}

TEST(Boxes, LocalShapeAgrees) {
  const Layout layout = Layout::parse("[a=3,b=2] SS(0,2),S(0)");
  for (std::int64_t a = 0; a < 3; ++a) {
    for (std::int64_t b = 0; b < 2; ++b) {
      EXPECT_EQ(local_shape(layout, Shape{11, 2}, {a, b}),
                boxes(layout, Shape{11, 2}, {a, b}).local_shape());
    }
  }
}

TEST(Boxes, LengthsAlongAxesAreWhatCollectivesAskFor) {
  const Layout layout = Layout::parse("[a=2,b=3] S(0),S(0)");
  const Shape shape{11, 2};
  EXPECT_EQ(lengths_along(layout, shape, 0, {"b"}, {0, 0}), (std::vector<std::int64_t>{2, 2, 2}));
  EXPECT_EQ(lengths_along(layout, shape, 0, {"b"}, {1, 2}), (std::vector<std::int64_t>{2, 2, 1}));
  EXPECT_EQ(lengths_along(layout, shape, -2, {"a", "b"}, {0, 0}),
            (std::vector<std::int64_t>{2, 2, 2, 2, 2, 1}));
  EXPECT_EQ(lengths_along(layout, shape, 0, {"b", "a"}, {0, 0}),
            (std::vector<std::int64_t>{2, 2, 2, 2, 2, 1}));
  EXPECT_EQ(lengths_along(layout, shape, 1, {"a"}, {0, 0}), (std::vector<std::int64_t>{2, 2}));
}

TEST(Boxes, RefusalsNameTheValues) {
  expect_error<ValueError>([] { (void)boxes(Layout::parse("[a=2] S(0)"), Shape{0}, {0}).box(0); },
                           {"no box 0", "among 0"});
  expect_error<ValueError>(
      [] {
        (void)local_shape(Layout(), Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}, {});
      },
      {"2^56"});
  expect_error<ValueError>([] { (void)Shape(17, 1); }, {"17 values", "at most 16"});
  const Layout layout = Layout::parse("[a=2] S(1)");
  expect_error<ValueError>([&] { boxes(layout, Shape{4}, {0}); },
                           {"[boxes]", "dimension 1", "only 1 dimension", "0..0"});
  expect_error<ValueError>([&] { boxes(layout, Shape{4, 4}, {2}); }, {"(2)", "[a=2]"});
  expect_error<ValueError>([&] { local_shape(layout, Shape{4, -1}, {0}); }, {"(4,-1)", "negative"});
  expect_error<ValueError>([&] { boxes(layout, Shape{4, std::int64_t{1} << 62}, {0}); }, {"2^56"});
}

}  // namespace
}  // namespace intarsia
