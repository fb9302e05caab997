#include "plan/lattice.h"

#include <gtest/gtest.h>

#include "plan/two_layouts.h"

namespace intarsia {
namespace {

using testing::slow_topology;
using testing::TwoLayouts;
using Sizes = std::vector<std::int64_t>;

/// Two layouts, and the lattice between them.
struct Between {
  Between(const char* mesh, const Sizes& shape, const char* from, const char* to,
          std::optional<std::int64_t> peak_bytes = std::nullopt,
          const Topology& topology = slow_topology())
      : l(mesh, shape, from, to, peak_bytes, topology), lattice(l.roles, l.prices, l.shape) {}

  /// The layouts of the shortest path, and the seconds.
  std::pair<std::string, double> shortest() {
    const Path path = lattice.shortest();
    return {l.text(path.states), path.seconds};
  }

  TwoLayouts l;
  Lattice lattice;
};

using Way = std::pair<std::string, double>;

TEST(Lattice, TakesTheCheapestWayOfTheExample) {
  // 8 B at once, from 2 ranks: 100 + 10 + 8 + 4.
  EXPECT_EQ(Between("[dp=2,tp=2]", {4, 4}, "S(0),S(1)", "R,S(0)").shortest(),
            Way("S(0),S(1) > R,S(0)", 122));
  // Of 1600 B: 110 + 800 + 400 at once, or 110 + 400 and 110 + 400 + 200.
  EXPECT_EQ(Between("[dp=2,tp=2]", {40, 40}, "S(0),S(1)", "R,S(0)").shortest(),
            Way("S(0),S(1) > R,S(1) > R,S(0)", 1220));
}

TEST(Lattice, HasOneNodeWhereNothingIsToBeDone) {
  EXPECT_EQ(Between("[a=2,b=2]", {4, 4}, "S(0),P(sum)", "S(0),P(sum)").shortest(),
            Way("S(0),P(sum)", 0));
  EXPECT_EQ(Between("[a=1,b=1]", {4, 4}, "S(0),R", "S(0),S(1)").shortest(), Way("S(0),R", 0));
}

TEST(Lattice, LetsAxesShardForAWhile) {
  Topology fast_b;  // only bytes cost: 1 s over a, a quarter over b
  fast_b.levels = {{"all", 0, {0, 0, 1}}};
  fast_b.axes = {{{"b"}, {0, 0, 4}}};
  // 32 B over b, 32 B over a, 32 B over b; at once it would be 96 B over a.
  EXPECT_EQ(Between("[a=2,b=2]", {64}, "P(sum),P(sum)", "R,R", std::nullopt, fast_b).shortest(),
            Way("P(sum),P(sum) > P(sum),S(0) > R,S(0) > R,R", 8 + 32 + 8));
  // In the dimension that has room.
  EXPECT_EQ(Between("[a=2,b=2]", {1, 64}, "P(sum),P(sum)", "R,R", std::nullopt, fast_b).shortest(),
            Way("P(sum),P(sum) > P(sum),S(1) > R,S(1) > R,R", 8 + 32 + 8));
  // A replicated axis too: 16 of the 32 B that b leaves a rank come over a, then 32 B over b.
  EXPECT_EQ(Between("[a=2,b=2]", {64}, "S(0),R", "R,R", std::nullopt, fast_b).shortest(),
            Way("S(0),R > R,SS(0,2) > R,R", 16 + 8));
}

TEST(Lattice, OfEqualWaysTakesTheShorter) {
  Topology free;  // nothing costs
  EXPECT_EQ(Between("[a=2,b=2]", {4, 4}, "S(0),S(1)", "R,S(0)", std::nullopt, free).shortest(),
            Way("S(0),S(1) > R,S(0)", 0));
}

TEST(Lattice, KeepsToABoundOfMemory) {
  // Pieces of 8 B, and buffers of 16 B, or of 16 / n + 4 B for n parts. R itself has 16 B.
  const auto way = [](std::int64_t bytes) {
    return Between("[a=2]", {4, 4}, "S(0)", "S(1)", bytes).shortest();
  };
  EXPECT_EQ(way(32), Way("S(0) > S(1)", 116));
  EXPECT_EQ(way(31), Way("S(0) > R > S(1)", 118 + 2));  // two parts would take 216 s
  EXPECT_EQ(way(24), Way("S(0) > R > S(1)", 118 + 2));
  EXPECT_EQ(way(23), Way("S(0) > S(1)", 616));  // six parts of 3 B
  EXPECT_EQ(way(21), Way("S(0) > S(1)", 1616));
  EXPECT_EQ(way(20), Way("", kNever));
}

TEST(Lattice, KnowsTheLeastBoundOfMemory) {
  const auto least = [](const char* mesh, const Sizes& shape, const char* from, const char* to) {
    return Between(mesh, shape, from, to).lattice.least_peak();
  };
  EXPECT_EQ(least("[a=2]", {4, 4}, "S(0)", "S(1)"), 21);
  EXPECT_EQ(least("[a=2]", {4, 4}, "S(0)", "R"), 24);
  EXPECT_EQ(least("[a=2]", {5, 1}, "S(0)", "R"), 3 + 5 + 5);  // uneven, in parts
  EXPECT_EQ(least("[a=2]", {4, 4}, "S(0)", "S(0)"), 8);
}

}  // namespace
}  // namespace intarsia
