#include "plan/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layout/all_layouts.h"
#include "plan/two_layouts.h"

namespace intarsia {
namespace {

using testing::slow_topology;
using testing::TwoLayouts;
using Sizes = std::vector<std::int64_t>;

double bound(const char* mesh, const Sizes& shape, const char* from, const char* to,
             const Topology& topology = slow_topology()) {
  TwoLayouts l(mesh, shape, from, to, std::nullopt, topology);
  Bounds bounds(l.roles, l.sets, l.shape);
  const auto [x, y] = l.states(from, to);
  return bounds.least(x, y);
}

/// Nothing but bytes costs: 1 s over a, a quarter over b.
Topology fast_b() {
  Topology out;
  out.levels = {{"all", 0, {0, 0, 1}}};
  out.axes = {{{"b"}, {0, 0, 4}}};
  return out;
}

TEST(Bounds, OfLocalStepsAreTheirCopies) {
  EXPECT_EQ(bound("[a=2]", {8}, "S(0)", "S(0)"), 0);
  EXPECT_EQ(bound("[a=2]", {8}, "R", "S(0)"), 1);
  EXPECT_EQ(bound("[a=2]", {8}, "R", "P(sum)"), 2);
  // Where a collective starts at once, half of the new 4 B could come from another.
  Topology quick = slow_topology();
  quick.levels[0].link = {0, 0, 8};
  EXPECT_EQ(bound("[a=2]", {8}, "R", "S(0)", quick), 0.25);
  EXPECT_EQ(bound("[a=2]", {5}, "R", "S(0)", quick), 0);  // perhaps nothing, of uneven pieces
}

TEST(Bounds, OfOneCollectiveAreItsPrice) {
  // 110 s to start and for a round, 4 B that are missing; an exchange copies them twice.
  EXPECT_EQ(bound("[a=2]", {8}, "S(0)", "R"), 114);
  EXPECT_EQ(bound("[a=2]", {4, 4}, "S(0)", "S(1)"), 116);
  Topology half = slow_topology();
  half.all_gather = 0.5;
  EXPECT_EQ(bound("[a=2]", {8}, "S(0)", "R", half), 112);
}

TEST(Bounds, CountWhatNoRankKeeps) {
  // Some rank has the other half, and lacks all 4 B. Of chunks of both halves all keep 2 B.
  EXPECT_EQ(bound("[a=2,b=2]", {8}, "S(0),R", "R,S(0)"), 114);
  EXPECT_EQ(bound("[a=2,b=2]", {8}, "S(0),R", "R,SS(0,2)"), 112);
  // Halves and thirds: 8 B of 24, of which the 12 B before could have all.
  EXPECT_EQ(bound("[a=2,b=3]", {24}, "S(0),R", "R,S(0)"), 110);
  EXPECT_EQ(bound("[a=3,b=2]", {24}, "S(0),R", "R,S(0)"), 114);
}

TEST(Bounds, OfReductionsAreOfTheSmallestPieces) {
  // One piece of 4 B to reduce, by the cheaper way of 5 s; then the other 4 B.
  EXPECT_EQ(bound("[a=2]", {8}, "P(sum)", "R"), 119);
  EXPECT_EQ(bound("[a=2]", {8}, "P(sum)", "S(0)"), 115);
}

TEST(Bounds, SendWhatTheyCanOverFastLinks) {
  // 16 B over a to each rank, 32 B over b: as a gather of a, then of b.
  EXPECT_EQ(bound("[a=2,b=2]", {8, 8}, "S(0),S(1)", "R,R", fast_b()), 16 + 8);
  // The start is that of the slowest.
  Topology starts = fast_b();
  starts.levels[0].link = {10, 100, 1};
  EXPECT_EQ(bound("[a=2,b=2]", {8, 8}, "S(0),S(1)", "R,R", starts), 110 + 16 + 8);
  // 8 B over a, 48 B over b and c.
  Topology two = fast_b();
  two.axes.push_back({{"c"}, {0, 0, 4}});
  EXPECT_EQ(bound("[a=2,b=2,c=2]", {4, 4, 4}, "S(0),S(1),S(2)", "R,R,R", two), 8 + 12);
  // Of 16 B pieces, 1 over a, 2 over b; then 48 B over b.
  EXPECT_EQ(bound("[a=2,b=2]", {64}, "P(sum),P(sum)", "R,R", fast_b()), 16 + 8 + 12);
}

TEST(Bounds, OfPartialValuesShareWhatIsMissing) {
  // Each of the ranks along b needs half of the 4 B; all copy 8 B, or gather half of them.
  EXPECT_EQ(bound("[a=2,b=2]", {8}, "S(0),R", "R,P(sum)"), 114);
  // 2 B over a to make some; those that stay may be gathered as they are, 4 B over b.
  EXPECT_EQ(bound("[a=2,b=2]", {8}, "S(0),R", "R,P(sum)", fast_b()), 2);
  EXPECT_EQ(bound("[a=2,b=2]", {8}, "S(0),P(sum)", "R,P(sum)", fast_b()), 1);
}

/// How many pairs of legal states have a bound above the price of one step or of two.
int count_above(const Sizes& shape, const Topology& topology) {
  TwoLayouts l("[a=2,b=2]", shape, "P(sum),P(sum)", "P(sum),P(sum)", std::nullopt, topology);
  Bounds bounds(l.roles, l.sets, l.shape);
  const auto layouts =
      testing::all_layouts(l.mesh, testing::placements({"R", "S(0)", "S(1)", "SS(0,2)", "P(sum)"}));
  std::vector<State> states;
  for (int again = 0; again < 2; ++again) {  // once all have numbers, conflicts are known
    states.clear();
    for (const Layout& layout : layouts) {
      if (roles_of(layout)[0].begin < 0 || roles_of(layout)[1].begin < 0) continue;
      const State s = l.state(layout.placements_text());
      if (l.roles.is_legal(s)) states.push_back(s);
    }
  }
  EXPECT_GT(states.size(), 15U);
  int above = 0;
  for (const State& x : states) {
    for (const State& y : states) {
      double price = l.prices.price(x, y).seconds;
      for (const State& between : states) {
        price = std::min(price,
                         l.prices.price(x, between).seconds + l.prices.price(between, y).seconds);
      }
      if (bounds.least(x, y) > price * (1 + 1e-12)) {
        ++above;
        ADD_FAILURE() << l.text({x, y}) << ": " << bounds.least(x, y) << " > " << price;
      }
    }
  }
  return above;
}

TEST(Bounds, AreNeverAboveAPrice) {
  Topology relative = slow_topology();
  relative.all_gather = 0.5;
  relative.all_reduce = 0.75;
  for (const Topology& topology : {slow_topology(), fast_b(), relative}) {
    EXPECT_EQ(count_above({8, 8}, topology), 0);
    EXPECT_EQ(count_above({5, 7}, topology), 0);
  }
}

}  // namespace
}  // namespace intarsia
