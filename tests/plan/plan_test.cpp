#include "intarsia/plan.h"

#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "error_text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "layout/all_layouts.h"
#include "layout/oracle.h"

namespace intarsia {
namespace {

using testing::expect_error;

std::string planned(const char* mesh, const char* from, const char* to) {
  const Mesh m = Mesh::parse(mesh);
  const auto plan = make_plan(Layout::parse(from, m), Layout::parse(to, m));
  return plan ? plan->to_string() : "no plan";
}

TEST(Plan, IsEmptyBetweenEqualLayouts) {
  EXPECT_EQ(planned("[a=2]", "S(0)", "S(0)"), "[a=2] S(0) -> S(0)");
}

TEST(Plan, TakesOneStepOnOneAxis) {
  EXPECT_EQ(planned("[a=2]", "S(0)", "R"), "[a=2] S(0) -> R\n  all_gather a: S(0) -> R");
  EXPECT_EQ(planned("[a=2]", "R", "S(0)"), "[a=2] R -> S(0)\n  slice a: R -> S(0)");
  EXPECT_EQ(planned("[a=2]", "S(0)", "S(1)"), "[a=2] S(0) -> S(1)\n  all_to_all a: S(0) -> S(1)");
  EXPECT_EQ(planned("[a=2]", "P(sum)", "R"), "[a=2] P(sum) -> R\n  all_reduce a: P(sum) -> R");
  EXPECT_EQ(planned("[a=2]", "P(sum)", "S(1)"),
            "[a=2] P(sum) -> S(1)\n  reduce_scatter a: P(sum) -> S(1)");
  EXPECT_EQ(planned("[a=2]", "R", "P(max)"), "[a=2] R -> P(max)\n  make_partial a: R -> P(max)");
}

TEST(Plan, SlicesFirstAndGathersLast) {
  EXPECT_EQ(planned("[a=2,b=2]", "S(0),R", "R,S(1)"),
            "[a=2,b=2] S(0),R -> R,S(1)\n"
            "  slice b: S(0),R -> S(0),S(1)\n"
            "  all_gather a: S(0),S(1) -> R,S(1)");
}

TEST(Plan, UndoesInnerCutsBeforeOuterOnes) {
  EXPECT_EQ(planned("[a=2,b=2]", "S(0),S(0)", "R,S(0)"),
            "[a=2,b=2] S(0),S(0) -> R,S(0)\n"
            "  all_gather b: S(0),S(0) -> S(0),R\n"
            "  all_gather a: S(0),R -> R,R\n"
            "  slice b: R,R -> R,S(0)");
}

TEST(Plan, KeepsCutsThatBothLayoutsShare) {
  EXPECT_EQ(planned("[a=2,b=2,c=2]", "S(0),S(0),R", "S(0),S(1),S(0)"),
            "[a=2,b=2,c=2] S(0),S(0),R -> S(0),S(1),S(0)\n"
            "  all_to_all b: S(0),S(0),R -> S(0),S(1),R\n"
            "  slice c: S(0),S(1),R -> S(0),S(1),S(0)");
}

TEST(Plan, AxesOfOneRankMoveNothing) {
  EXPECT_EQ(planned("[a=2,b=1,c=2]", "S(0),R,S(0)", "S(0),S(0),S(0)"),
            "[a=2,b=1,c=2] S(0),R,S(0) -> S(0),S(0),S(0)\n"
            "  relabel b: S(0),R,S(0) -> S(0),S(0),S(0)");
}

TEST(Plan, DoesNotExistBetweenKindsOfPartial) {
  EXPECT_EQ(planned("[a=2]", "P(sum)", "P(max)"), "no plan");
  EXPECT_EQ(planned("[a=2]", "P(sum)", "P(avg)"), "no plan");
  EXPECT_NE(planned("[a=2,b=2]", "P(sum),R", "R,P(max)"), "no plan");
}

TEST(Plan, RefusesDifferentMeshes) {
  expect_error<ValueError>(
      [] { (void)make_plan(Layout::parse("[a=2] R"), Layout::parse("[a=3] R")); },
      {"[make_plan]", "[a=2] R", "[a=3] R", "different meshes"});
}

/// Flat numbers of the elements that a rank holds.
std::set<std::int64_t> elements(const Layout& layout, const testing::Indices& shape,
                                const Coordinate& at) {
  const auto piece = testing::Array::count(shape).piece(layout, at);
  return {piece.values.begin(), piece.values.end()};
}

/// Every rank finds what it holds after a step among what its group along the axis held before;
/// where nothing is sent, among what it held itself.
bool feasible(const Step& step, const testing::Indices& shape) {
  const Mesh& mesh = step.before.mesh();
  const bool local = step.kind == StepKind::slice || step.kind == StepKind::make_partial ||
                     step.kind == StepKind::relabel;
  bool ok = true;
  testing::for_each_coordinate(mesh, [&](const Coordinate& at) {
    std::set<std::int64_t> reachable;
    for (std::int64_t i = 0; i < mesh.size(step.axis); ++i) {
      if (local && i != at[step.axis]) continue;
      Coordinate other = at;
      other[step.axis] = i;
      reachable.merge(elements(step.before, shape, other));
    }
    const auto needed = elements(step.after, shape, at);
    ok = ok && std::includes(reachable.begin(), reachable.end(), needed.begin(), needed.end());
  });
  return ok;
}

TEST(Plan, AllPairsOfSmallLayouts) {
  int pairs = 0;
  int steps = 0;
  const auto choices = testing::placements({"R", "S(0)", "S(1)", "SS(0,2)", "P(sum)"});
  for (const char* text : {"[a=2,b=3]", "[a=2,b=1,c=2]"}) {
    const Mesh mesh = Mesh::parse(text);
    const auto layouts = testing::all_layouts(mesh, choices);
    for (const Layout& from : layouts) {
      for (const Layout& to : layouts) {
        const auto plan = make_plan(from, to);
        ASSERT_TRUE(plan) << from.to_string() << " -> " << to.to_string();
        ++pairs;
        Layout now = from;
        for (const Step& step : plan->steps) {
          ++steps;
          ASSERT_EQ(step.before, now);
          ASSERT_TRUE(mesh.axes() == 3 || feasible(step, {5, 3})) << plan->to_string();
          now = step.after;
        }
        ASSERT_EQ(now, to);
        ASSERT_LE(plan->steps.size(), 2 * mesh.axes()) << plan->to_string();
      }
    }
  }
  std::cout << pairs << " pairs of layouts, " << steps << " steps\n";
}

}  // namespace
}  // namespace intarsia
