#include "intarsia/plan.h"

#include <gtest/gtest.h>

#include <array>
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

constexpr std::array<std::int64_t, 2> kShape{64, 64};

std::string planned(const char* mesh, const char* from, const char* to) {
  const Mesh m = Mesh::parse(mesh);
  const auto plan = make_plan(Layout::parse(from, m), Layout::parse(to, m), kShape);
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

TEST(Plan, SendsOnlyWhatIsMissingWhereCutsChangeTheirOrder) {
  EXPECT_EQ(planned("[a=2,b=2]", "S(0),S(0)", "R,S(0)"),
            "[a=2,b=2] S(0),S(0) -> R,S(0)\n"
            "  all_to_all a+b: S(0),S(0) -> R,S(0)");
  EXPECT_EQ(planned("[a=2,b=2]", "S(0),S(0)", "S(0),S(0) | 0:b>a"),
            "[a=2,b=2] S(0),S(0) -> S(0),S(0) | 0:b>a\n"
            "  permute a+b: S(0),S(0) -> S(0),S(0) | 0:b>a");
}

TEST(Plan, FusesAxes) {
  EXPECT_EQ(planned("[a=2,b=2]", "S(0),S(1)", "R,R"),
            "[a=2,b=2] S(0),S(1) -> R,R\n  all_gather a+b: S(0),S(1) -> R,R");
  EXPECT_EQ(planned("[a=2,b=3,c=2]", "P(sum),S(0),P(sum)", "S(1),S(0),S(1)"),
            "[a=2,b=3,c=2] P(sum),S(0),P(sum) -> S(1),S(0),S(1)\n"
            "  reduce_scatter a+c: P(sum),S(0),P(sum) -> S(1),S(0),S(1)");
}

TEST(Plan, MakesTermsOfPartsInPlace) {
  EXPECT_EQ(planned("[a=2]", "S(0)", "P(sum)"),
            "[a=2] S(0) -> P(sum)\n  make_partial a: S(0) -> P(sum)");
  EXPECT_EQ(planned("[a=2]", "S(0)", "P(avg)"),
            "[a=2] S(0) -> P(avg)\n  all_gather a: S(0) -> R\n  make_partial a: R -> P(avg)");
}

TEST(Plan, KeepsCutsThatBothLayoutsShare) {
  EXPECT_EQ(planned("[a=2,b=2,c=2]", "S(0),S(0),R", "S(0),S(1),S(0)"),
            "[a=2,b=2,c=2] S(0),S(0),R -> S(0),S(1),S(0)\n"
            "  all_to_all b: S(0),S(0),R -> S(0),S(1),S(0)");
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

/// Nodes of four ranks: slow between, fast inside.
Topology two_levels() {
  return Topology::parse(R"({"levels": [
      {"name": "node", "ranks": 4, "latency_us": 1, "overhead_us": 5, "gigabytes_per_s": 100},
      {"name": "all", "latency_us": 5, "overhead_us": 10, "gigabytes_per_s": 10}]})");
}

TEST(Plan, SendsLittleOverSlowLinks) {
  const Mesh mesh = Mesh::parse("[n=4,g=4]");
  const Topology topology = two_levels();
  const std::array<std::int64_t, 2> shape{4096, 4096};
  const auto plan = make_plan(Layout::parse("P(sum),P(sum)", mesh), Layout::replicated(mesh), shape,
                              {.topology = &topology});
  EXPECT_EQ(plan->to_string(),
            "[n=4,g=4] P(sum),P(sum) -> R,R\n"
            "  reduce_scatter g: P(sum),P(sum) -> P(sum),S(0)\n"
            "  all_reduce n: P(sum),S(0) -> R,S(0)\n"
            "  all_gather g: R,S(0) -> R,R");
}

TEST(Plan, KeepsToABoundOfMemory) {
  const Mesh mesh = Mesh::parse("[a=4]");
  const std::array<std::int64_t, 2> shape{256, 256};
  const auto plan = [&](std::int64_t peak) {
    return *make_plan(Layout::parse("S(0)", mesh), Layout::parse("S(1)", mesh), shape,
                      {.peak_bytes = peak});
  };
  EXPECT_EQ(plan(1 << 20).steps[0].chunks, 1);
  EXPECT_GT(plan(160000).steps[0].chunks, 1);
  EXPECT_LE(plan(160000).peak_bytes, 160000);
  expect_error<ValueError>([&] { (void)plan(100000); }, {"100000", "the least possible is 13"});
}

TEST(Plan, IsTheSameAgain) {
  PlanCache cache;
  const Mesh mesh = Mesh::parse("[a=2,b=2]");
  const Layout from = Layout::parse("S(0),R", mesh);
  const Layout to = Layout::parse("R,S(1)", mesh);
  const auto first = cache.plan(from, to, kShape, 4);
  EXPECT_EQ(cache.plan(from, to, kShape, 4).get(), first.get());
  EXPECT_NE(cache.plan(from, to, kShape, 8).get(), first.get());
  EXPECT_EQ(*cache.plan(from, to, kShape, 4), *make_plan(from, to, kShape));
}

TEST(TopologyText, ReadsWhatItWrites) {
  Topology t = two_levels();
  t.axes.push_back({{"dp", "tp"}, {1e-6, 2e-6, 3e9}});
  t.all_reduce = 1.25;
  EXPECT_EQ(Topology::parse(t.to_json()), t);
  EXPECT_EQ(Topology::parse(Topology::standard().to_json()), Topology::standard());
}

TEST(TopologyText, RefusalsNameTheValues) {
  expect_error<ValueError>([] { (void)Topology::parse("{"); }, {"not JSON"});
  expect_error<ValueError>([] { (void)Topology::parse("{}"); }, {"no levels"});
  expect_error<ValueError>([] { (void)Topology::parse(R"({"level": []})"); },
                           {"no 'level'", "levels"});
  expect_error<ValueError>([] { (void)Topology::parse(R"({"levels": [{"name": 3}]})"); }, {"3"});
  expect_error<ValueError>(
      [] { (void)Topology::parse(R"({"levels": [{"ranks": 8}, {"ranks": 4}]})"); }, {"8", "4"});
  expect_error<ValueError>([] { (void)Topology::parse(R"({"levels": [{"gigabytes_per_s": 0}]})"); },
                           {"is 0"});
  expect_error<ValueError>([] { (void)Topology::load("/nowhere/t.json"); }, {"/nowhere/t.json"});
}

TEST(Topology, FindsTheLevelOfAxes) {
  const Topology t = two_levels();
  const auto bandwidth = [&](const char* mesh, std::initializer_list<std::int8_t> axes) {
    return t.link(Mesh::parse(mesh), AxisList(axes)).bandwidth;
  };
  EXPECT_EQ(bandwidth("[n=2,g=4]", {1}), 100e9);
  EXPECT_EQ(bandwidth("[n=2,g=4]", {0}), 10e9);
  EXPECT_EQ(bandwidth("[n=2,g=4]", {0, 1}), 10e9);
  EXPECT_EQ(bandwidth("[g=4:1,n=2:4]", {0}), 100e9);
  EXPECT_EQ(bandwidth("[g=4]+2", {0}), 10e9);  // ranks 2..5 are on both nodes
  EXPECT_EQ(bandwidth("[a=2,b=2,c=2]", {1, 2}), 100e9);
}

TEST(Plan, RefusesDifferentMeshes) {
  expect_error<ValueError>(
      [] { (void)make_plan(Layout::parse("[a=2] R"), Layout::parse("[a=3] R"), kShape); },
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
    testing::for_each_coordinate(mesh, [&](const Coordinate& other) {
      for (std::size_t a = 0; a < mesh.axes(); ++a) {
        const bool along = std::find(step.axes.begin(), step.axes.end(), a) != step.axes.end();
        if (other[a] != at[a] && (local || !along)) return;
      }
      reachable.merge(elements(step.before, shape, other));
    });
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
        const std::array<std::int64_t, 2> shape{5, 3};
        const auto plan = make_plan(from, to, shape);
        ASSERT_TRUE(plan) << from.to_string() << " -> " << to.to_string();
        ++pairs;
        Layout now = from;
        for (const Step& step : plan->steps) {
          ++steps;
          ASSERT_EQ(step.before, now);
          ASSERT_TRUE(step.kind == StepKind::make_partial || feasible(step, {5, 3}))
              << plan->to_string();
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
