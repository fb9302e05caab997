#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "intarsia/boxes.h"
#include "intarsia/plan.h"
#include "layout/coordinates.h"
#include "plan/shared.h"

namespace intarsia {
namespace {

using Bytes = std::array<std::int64_t, 4>;

/// Received at most and by all, missing at most and by all.
Bytes bytes(const Traffic& t) {
  return {t.received, t.received_by_all, t.missing, t.missing_by_all};
}

Step step(StepKind kind, const char* mesh, const AxisList& axes, const char* from, const char* to) {
  const Mesh m = Mesh::parse(mesh);
  return {kind, axes, Layout::parse(from, m), Layout::parse(to, m)};
}

TEST(SharedElements, AreThoseOfBothPieces) {
  const auto shared = [](const char* x, const char* y, const Shape& shape, const Coordinate& at) {
    return shared_elements(boxes(Layout::parse(x), shape, at), boxes(Layout::parse(y), shape, at));
  };
  EXPECT_EQ(shared("[a=2] S(0)", "[a=2] R", {5}, {1}), 2);
  EXPECT_EQ(shared("[a=2] S(0)", "[a=2] SS(0,2)", {8}, {0}), 2);     // 0..3 and 0,1,4,5
  EXPECT_EQ(shared("[a=2] SS(0,2)", "[a=2] SS(0,4)", {8}, {0}), 2);  // 0,1,4,5 and 0,2,4,6
  EXPECT_EQ(shared("[a=2] S(0)", "[a=2] S(1)", {6, 4}, {1}), 6);
  EXPECT_EQ(shared("[a=4] S(0)", "[a=4] R", {5}, {3}), 0);
  EXPECT_EQ(shared("[a=2] R", "[a=2] P(sum)", {}, {1}), 1);
}

TEST(PieceBytes, AreOfTheLargestPiece) {
  for (const char* text :
       {"R,R", "P(sum),S(0)", "S(0),S(0)", "S(1),S(0)", "S(0),S(0) | 0:b>a", "SS(0,2),R",
        "SS(0,4),S(0)", "SS(0,3),SS(0,2)", "S(0),SS(0,4)", "S(0),SS(0,2)", "SS(0,4),SS(0,5)"}) {
    for (const Shape& shape :
         {Shape{5, 3}, Shape{9, 1}, Shape{13, 11}, Shape{31, 2}, Shape{0, 4}, Shape{1, 16}}) {
      const Layout layout = Layout::parse(text, Mesh::parse("[a=2,b=3]"));
      std::int64_t most = 0;
      for (std::int64_t i = 0; i < 6; ++i) {
        most = std::max(most, boxes(layout, shape, coordinate_at(layout.mesh(), i)).numel());
      }
      EXPECT_EQ(piece_bytes(layout, shape, 4), 4 * most) << text << " of " << shape[0];
    }
  }
}

TEST(Traffic, OfCollectivesIsWhatArrives) {
  const Shape five{5};
  // Pieces of 3 and 2: each lacks the other.
  EXPECT_EQ(bytes(traffic(step(StepKind::all_gather, "[a=2]", {0}, "S(0)", "R"), five, 4)),
            (Bytes{12, 20, 12, 20}));
  // The other's partial value of 3 elements, or of 2.
  EXPECT_EQ(bytes(traffic(step(StepKind::reduce_scatter, "[a=2]", {0}, "P(sum)", "S(0)"), five, 1)),
            (Bytes{3, 5, 0, 0}));
  EXPECT_EQ(bytes(traffic(step(StepKind::exchange_partials, "[a=3]", {0}, "P(sum)", "R"), five, 1)),
            (Bytes{10, 30, 0, 0}));
  const Shape square{4, 4};
  EXPECT_EQ(bytes(traffic(step(StepKind::all_to_all, "[a=2]", {0}, "S(0)", "S(1)"), square, 2)),
            (Bytes{8, 16, 8, 16}));
}

TEST(Traffic, OfAnAllReduceGoesAroundTwice) {
  // Of n ranks, 2 (n - 1) / n of the piece, along the axes of the step only.
  const Shape shape{12};
  EXPECT_EQ(bytes(traffic(step(StepKind::all_reduce, "[a=2]", {0}, "P(sum)", "R"), shape, 1)),
            (Bytes{12, 24, 0, 0}));
  EXPECT_EQ(bytes(traffic(step(StepKind::all_reduce, "[a=3,b=2]", {0}, "P(sum),S(0)", "R,S(0)"),
                          shape, 1)),
            (Bytes{8, 48, 0, 0}));
  EXPECT_EQ(bytes(traffic(step(StepKind::all_reduce, "[a=2,b=2]", {0, 1}, "P(sum),P(sum)", "R,R"),
                          shape, 1)),
            (Bytes{18, 72, 0, 0}));
}

TEST(Traffic, OfLocalStepsIsNone) {
  const Shape shape{4, 4};
  for (const Step& s : {step(StepKind::slice, "[a=2]", {0}, "R", "S(0)"),
                        step(StepKind::make_partial, "[a=2]", {0}, "R", "P(max)"),
                        step(StepKind::relabel, "[a=1]", {0}, "S(0)", "R")}) {
    EXPECT_EQ(bytes(traffic(s, shape, 4)), (Bytes{0, 0, 0, 0}));
  }
  // Made of parts, partial values are full: a bound is not what is missing.
  EXPECT_EQ(bytes(traffic(step(StepKind::make_partial, "[a=2]", {0}, "S(0)", "P(sum)"), shape, 1)),
            (Bytes{0, 0, 8, 16}));
}

TEST(Traffic, OfAPlanAddsItsStepsUpRankByRank) {
  const Step gather = step(StepKind::all_gather, "[a=2]", {0}, "S(0)", "R");
  const Step slice = step(StepKind::slice, "[a=2]", {0}, "R", "S(1)");
  const Plan detour{gather.before, slice.after, {3, 4}, 1, {gather, slice}};
  // 2 rows and 1 of 4: ranks gather 4 and 8, and lacked 2 and 4 of their 6.
  EXPECT_EQ(bytes(traffic(detour)), (Bytes{8, 12, 4, 6}));
  const Plan twice{gather.before, gather.after, {3, 4}, 1, {gather, slice, gather}};
  EXPECT_EQ(traffic(twice).received, 16);  // by the one rank that receives most in all
}

TEST(Traffic, LooksAtSomeOfVeryManyRanks) {
  const Shape shape{5000};
  const Traffic t = traffic(step(StepKind::all_gather, "[a=5000]", {0}, "S(0)", "R"), shape, 1);
  EXPECT_EQ(bytes(t), (Bytes{4999, 4999 * 4096, 4999, 4999 * 4096}));
}

}  // namespace
}  // namespace intarsia
