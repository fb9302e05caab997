#include "plan/compare.h"

#include <gtest/gtest.h>

#include "plan/two_layouts.h"

namespace intarsia {
namespace {

using testing::TwoLayouts;

constexpr Mask kA = 1;
constexpr Mask kB = 2;
constexpr Mask kC = 4;

/// A comparison of two layouts.
struct Compared {
  Compared(const char* mesh, std::vector<std::int64_t> shape, const char* from, const char* to)
      : l(mesh, std::move(shape), from, to),
        comparer(l.roles, l.sets, l.shape),
        states(l.states(from, to)) {}

  Changes changes() const { return comparer.changes(states[0], states[1]); }
  /// From how many ranks along these axes a rank gets its new piece.
  double sources(Mask axes, Mask apart = 0) {
    return comparer.sources(states[0], states[1].sharding_roles, axes, apart);
  }

  TwoLayouts l;
  StateComparer comparer;
  std::array<State, 2> states;
};

TEST(StateComparer, FindsTheAxesWhoseShardsDoNotStay) {
  const auto changes = [](const char* from, const char* to) {
    const Changes c = Compared("[a=2,b=2]", {8, 8}, from, to).changes();
    return std::pair(c.left, c.same);
  };
  EXPECT_EQ(changes("S(0),S(1)", "R,S(1)"), std::pair(kA, kB));
  EXPECT_EQ(changes("S(0),R", "S(0),S(0)"), std::pair(Mask{0}, kA));
  EXPECT_EQ(changes("S(0),S(0)", "R,SS(0,2)"), std::pair(kA, kB));
  // Without a, S(0) of b is another digit.
  EXPECT_EQ(changes("S(0),S(0)", "R,S(0)"), std::pair(kA | kB, Mask{0}));
  EXPECT_EQ(changes("P(sum),S(0)", "S(1),S(0)"), std::pair(Mask{0}, kB));
}

TEST(StateComparer, LooksAtUnevenChunksOneByOne) {
  const auto left = [](std::int64_t length) {
    const Changes c =
        Compared("[a=2,b=2,c=2]", {length}, "S(0),S(0),S(0)", "R,R,SS(0,4)").changes();
    EXPECT_EQ(c.same, kC);
    return c.left;
  };
  EXPECT_EQ(left(16), kA | kB);
  // Quarters of 3, in chunks of 2 and 1, both times.
  EXPECT_EQ(left(12), kA | kB);
  // 0-2 3-4 5-7 8-9 before, and 0-2 3-5 6-8 9 after: c=0 had 5, and needs 4.
  EXPECT_EQ(left(10), kA | kB | kC);
  // Quarters of 1, of which c=1 has nothing, both times.
  EXPECT_EQ(left(4), kA | kB);
  // Quarters of 15; those of 17 are too long to look at.
  EXPECT_EQ(left(60), kA | kB);
  EXPECT_EQ(left(68), kA | kB | kC);
}

TEST(StateComparer, UnevenChunksStayWhereTheSameShardsBeforeThem) {
  const auto left = [](const char* mesh, const char* from, const char* to) {
    return Compared(mesh, {71, 4}, from, to).changes().left;
  };
  EXPECT_EQ(left("[a=2,b=2]", "S(0),S(0)", "S(0),S(0)"), 0U);
  EXPECT_EQ(left("[a=2,b=2,c=2]", "S(0),S(0),S(1)", "S(0),S(0),R"), kC);
  // 2 blocks are as the 2 ranks of an axis.
  EXPECT_EQ(left("[a=2,b=2]", "S(0),S(0)", "R,SS(0,2)"), kA);
  // Sixths of 20, as thirds of halves or halves of thirds.
  const auto swapped = [](std::int64_t length) {
    return Compared("[a=2,b=3,c=2]", {length}, "S(0),S(0),S(0)", "S(0),S(0),S(0) | 0:b>a>c")
        .changes()
        .left;
  };
  EXPECT_EQ(swapped(24), kA | kB);
  EXPECT_EQ(swapped(20), kA | kB | kC);
  // What is irregular depends on all before it.
  EXPECT_EQ(left("[a=2,b=2]", "SS(0,4),S(0)", "SS(0,4),S(0)"), 0U);
  EXPECT_EQ(left("[a=2,b=2]", "SS(0,4),S(0)", "SS(0,2),S(0)"), kA | kB);
}

TEST(StateComparer, CountsTheRanksThatAPieceComesFrom) {
  // Halves of quarters: from two of four ranks.
  EXPECT_EQ(Compared("[a=4,b=2]", {8}, "S(0),R", "R,S(0)").sources(kA), 2);
  EXPECT_EQ(Compared("[a=2,b=4]", {8}, "S(0),R", "R,S(0)").sources(kA), 1);
  EXPECT_EQ(Compared("[a=4,b=2]", {8, 8}, "S(0),R", "R,S(1)").sources(kA), 4);
  EXPECT_EQ(Compared("[a=4,b=2]", {8, 8}, "S(0),S(1)", "R,R").sources(kA | kB), 8);
  // Halves and thirds do not nest: all count.
  EXPECT_EQ(Compared("[a=2,b=3]", {12}, "S(0),R", "R,S(0)").sources(kA), 2);
  EXPECT_EQ(Compared("[a=2,b=3]", {12}, "R,S(0)", "S(0),R").sources(kB), 3);
  // Halves of sixths.
  EXPECT_EQ(Compared("[a=6,b=2]", {12}, "S(0),R", "R,S(0)").sources(kA), 3);
}

TEST(StateComparer, CountsAllRanksAlongWhatIsIrregular) {
  Compared c("[a=2,b=2]", {16}, "SS(0,4),S(0)", "S(0),S(0)");
  const Mask apart = c.comparer.apart_by_irregular(c.states[0], c.states[1]);
  EXPECT_EQ(apart, c.states[0].sharding_roles);
  EXPECT_EQ(c.sources(kA | kB, apart), 4);
  // Nothing is apart where the dimension is the same, or not sharded any more.
  EXPECT_EQ(c.comparer.apart_by_irregular(c.states[0], c.states[0]), 0U);
  Compared gathered("[a=2,b=2]", {16}, "SS(0,4),S(0)", "R,R");
  EXPECT_EQ(gathered.comparer.apart_by_irregular(gathered.states[0], gathered.states[1]), 0U);
}

TEST(StateComparer, KnowsWhereRanksOnlyTradePieces) {
  const auto trades = [](const char* mesh, const char* from, const char* to) {
    Compared c(mesh, {8, 8}, from, to);
    return c.comparer.is_one_to_one(c.states[0], c.states[1], c.changes().left, 0);
  };
  EXPECT_TRUE(trades("[a=2,b=2]", "S(0),S(0)", "S(0),S(0) | 0:b>a"));
  EXPECT_TRUE(trades("[a=2,b=2]", "S(0),S(1)", "S(1),S(0)"));
  EXPECT_FALSE(trades("[a=2,b=2]", "S(0),R", "S(1),R"));
  // What tells pieces apart is not an axis along which ranks talk: one rank gives to several.
  EXPECT_FALSE(trades("[a=2,b=2]", "S(0),R", "R,S(0)"));
}

/// Whether gathering along these axes joins pieces in the order of ranks.
bool joins(const char* layout, Mask group) {
  Compared c("[a=2,b=2]", {16, 16}, layout, "R,R");
  return c.comparer.joins_rows(c.states[0], group);
}

TEST(StateComparer, KnowsWhereGatheringOnlyJoinsRows) {
  EXPECT_TRUE(joins("S(0),R", kA));
  EXPECT_FALSE(joins("S(1),R", kA));
  EXPECT_FALSE(joins("S(0),S(1)", kA | kB));
  EXPECT_TRUE(joins("S(0),S(1)", kA));
  EXPECT_TRUE(joins("S(0),S(0)", kA | kB));
  EXPECT_TRUE(joins("S(0),S(0)", kB));
  EXPECT_FALSE(joins("S(0),S(0) | 0:b>a", kA | kB));  // the other order of ranks
  EXPECT_TRUE(joins("S(0),S(0) | 0:b>a", kA));
  EXPECT_FALSE(joins("SS(0,2),R", kA));
  // Irregular, without blocks and with some.
  EXPECT_TRUE(joins("SS(0,4),S(0)", kB));
  EXPECT_FALSE(joins("SS(0,4),SS(0,2)", kB));
  EXPECT_FALSE(joins("S(0),SS(0,4) | 0:b>a", kA | kB));
}

}  // namespace
}  // namespace intarsia
