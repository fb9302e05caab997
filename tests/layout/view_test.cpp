#include "intarsia/view.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

std::string viewed(const char* layout, const View& view) {
  const ViewedLayout result = view_layout(Layout::parse(layout), view);
  return result.layout ? result.layout->placements_text() : "crosses: " + result.crossing->why;
}

TEST(View, UntouchedDimsKeepTheirCuts) {
  EXPECT_EQ(viewed("[a=2,b=3] S(0),S(2)", View::flatten({5, 4, 3}, 1, -2)), "S(0),S(2)");
  EXPECT_EQ(viewed("[a=2,b=3] S(0),S(0) | 0:b>a", View::unsqueeze({5, 4}, 0)), "S(1),S(1) | 1:b>a");
}

TEST(View, TransposeMovesCuts) {
  EXPECT_EQ(viewed("[a=2,b=2] S(0),SS(1,2)", View::transpose({8, 4}, 0, 1)), "S(1),SS(0,2)");
  EXPECT_EQ(viewed("[a=2] S(2)", View::permute({2, 3, 4}, Shape{2, 0, 1})), "S(0)");
}

TEST(View, FlattenOfAnOuterCutStaysAShard) {
  EXPECT_EQ(viewed("[a=2] S(0)", View::flatten({4, 3}, 0, 1)), "S(0)");
}

TEST(View, FlattenOfAnInnerCutBecomesStrided) {
  EXPECT_EQ(viewed("[a=2] S(1)", View::flatten({4, 6}, 0, 1)), "SS(0,4)");
  EXPECT_EQ(viewed("[a=2] S(1)", View::flatten({4, 5}, 0, 1)), "SS(0,4)");  // uneven is exact too
}

TEST(View, UnflattenUndoesFlatten) {
  EXPECT_EQ(viewed("[a=2] SS(0,4)", View::unflatten({24}, 0, {4, 6})), "S(1)");
  EXPECT_EQ(viewed("[a=2] S(0)", View::unflatten({24}, 0, {4, -1})), "S(0)");
}

TEST(View, AttentionHeadsOfASequenceParallelLinear) {
  // (batch@dp, seq@cp, hidden@tp) -> (batch, seq, heads, head_dim)
  EXPECT_EQ(viewed("[dp=2,cp=2,tp=4] S(0),S(1),S(2)", View::unflatten({8, 128, 512}, 2, {8, 64})),
            "S(0),S(1),S(2)");
  // (batch, seq, hidden) -> (batch * seq, hidden), as a linear layer does
  EXPECT_EQ(viewed("[dp=2,cp=2] S(0),S(1)", View::flatten({8, 128, 512}, 0, 1)), "S(0),SS(0,4)");
}

TEST(View, CutsOfBothFlattenedDimsAreKept) {
  EXPECT_EQ(viewed("[a=2,b=2] S(0),S(1)", View::flatten({4, 6}, 0, 1)), "S(0),SS(0,2)");
  // An uneven outer cut must come last: blocks of the inner one are whole only before it.
  EXPECT_EQ(viewed("[a=2,b=2] S(1),S(1)", View::flatten({3, 8}, 0, 1)), "SS(0,3),SS(0,3)");
}

TEST(View, PartialPasses) {
  EXPECT_EQ(viewed("[a=2,b=2] P(sum),S(0)", View::reshape({4, 6}, {2, 2, 6})), "P(sum),S(0)");
}

TEST(View, SqueezeAndExpand) {
  EXPECT_EQ(viewed("[a=2] S(1)", View::squeeze({1, 4})), "S(0)");
  EXPECT_EQ(viewed("[a=2] S(1)", View::squeeze({1, 4}, 0)), "S(0)");
  EXPECT_EQ(viewed("[a=2] S(0)", View::expand({4, 1}, {3, 4, 5})), "S(1)");
  EXPECT_EQ(View::expand({4, 1}, {3, -1, 5}).output(), (Shape{3, 4, 5}));
}

TEST(View, CrossingNamesAxisDimAndTheCheapestMove) {
  const ViewedLayout result =
      view_layout(Layout::parse("[a=4] S(0)"), View::unflatten({6, 8}, 0, {2, 3}));
  ASSERT_TRUE(result.crossing);
  EXPECT_EQ(result.crossing->axis, 0U);
  EXPECT_EQ(result.crossing->dim, 0);
  EXPECT_EQ(result.crossing->move_to.placements_text(), "S(1)");
  EXPECT_EQ(result.crossing->then.placements_text(), "S(2)");
  EXPECT_EQ(
      result.crossing->why,
      "[unflatten] (6,8) -> (2,3,8) crosses the sharding of dimension 0 by axis 'a' (S(0)) in "
      "[a=4] S(0); redistribute to S(1) first, the result is then S(2)");
}

TEST(View, CrossingFallsBackToReplicate) {
  const ViewedLayout result = view_layout(Layout::parse("[a=4] S(0)"), View::reshape({6}, {2, 3}));
  ASSERT_TRUE(result.crossing);
  EXPECT_EQ(result.crossing->move_to.placements_text(), "R");
}

TEST(View, ACutSingleElementStaysOnItsRank) {
  // Only the first rank holds the dim of size 1; afterwards it alone holds blocks of one index.
  EXPECT_EQ(viewed("[a=2] S(0)", View::squeeze({1, 4})), "SS(0,4)");
  EXPECT_EQ(viewed("[a=2] S(0)", View::expand({1, 4}, {3, 4})), "SS(0,3)");
  EXPECT_TRUE(view_layout(Layout::parse("[a=2] S(0)"), View::squeeze({1})).crossing);
  EXPECT_EQ(viewed("[a=1] S(0)", View::expand({1, 4}, {3, 4})), "R");
}

TEST(View, WithoutElementsEveryRankHoldsTheSame) {
  EXPECT_EQ(viewed("[a=2] S(0)", View::reshape({0, 4}, {0, 2, 2})), "S(0)");
  EXPECT_EQ(viewed("[a=2] S(1)", View::reshape({0, 4}, {0})), "R");
}

TEST(View, RefusalsNameTheValues) {
  expect_error<ValueError>([] { View::reshape({4, 6}, {5, 5}); }, {"[reshape]", "(5,5)", "24"});
  expect_error<ValueError>(
      [] {
        View::reshape({std::int64_t{1} << 32, std::int64_t{1} << 32}, {0});
      },
      {"2^56"});
  expect_error<ValueError>([] { View::reshape({4}, {-1, -1}); }, {"more than one -1"});
  expect_error<ValueError>([] { View::reshape({0}, {-1, 0}); }, {"(-1,0)"});
  expect_error<ValueError>([] { View::flatten({4, 6}, 1, 0); }, {"dim 1", "dim 0"});
  expect_error<ValueError>([] { View::permute({4, 6}, Shape{0, 0}); }, {"(0,0)", "twice"});
  expect_error<ValueError>([] { View::permute({4, 6}, Shape{0}); }, {"all 2 dims"});
  expect_error<ValueError>([] { View::expand({4}, {5}); }, {"(4)", "(5)", "size 1"});
  expect_error<ValueError>([] { View::transpose({4}, 0, 1); }, {"dimension 1"});
  expect_error<ValueError>([] { view_layout(Layout::parse("[a=2] S(1)"), View::squeeze({4})); },
                           {"[squeeze]", "dimension 1"});
}

}  // namespace
}  // namespace intarsia
