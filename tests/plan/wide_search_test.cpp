#include "plan/wide_search.h"

#include <gtest/gtest.h>

#include "layout/all_layouts.h"
#include "plan/two_layouts.h"

namespace intarsia {
namespace {

using testing::slow_topology;
using testing::TwoLayouts;
using Sizes = std::vector<std::int64_t>;
using Way = std::pair<std::string, double>;

/// Two layouts, and both searches between them.
struct Between {
  Between(const char* mesh, const Sizes& shape, const char* from, const char* to,
          std::optional<std::int64_t> peak_bytes = std::nullopt,
          const Topology& topology = slow_topology())
      : l(mesh, shape, from, to, peak_bytes, topology),
        bounds(l.roles, l.sets, l.shape),
        lattice(l.roles, l.prices, l.shape),
        wide(l.roles, l.prices, bounds, l.from, l.to, l.shape) {}

  /// The layouts of a path, and the seconds.
  Way way(const Path& path) const { return {l.text(path.states), path.seconds}; }

  TwoLayouts l;
  Bounds bounds;
  Lattice lattice;
  WideSearch wide;
};

TEST(WideSearch, LetsAxesShardWhatNeitherLayoutHas) {
  Between b("[a=2,b=2]", {40, 40}, "S(1),R", "R,S(1)");
  const Path known = b.lattice.shortest();
  // 800 B that no rank keeps: 110 + 800 + 400.
  EXPECT_EQ(b.way(known), Way("S(1),R > R,S(1)", 1310));
  // 400 B to shard rows too, 110 + 400 + 200; then rows are joined, 110 + 400.
  EXPECT_EQ(b.way(b.wide.improve(known)), Way("S(1),R > S(0),S(1) > R,S(1)", 1220));
}

TEST(WideSearch, ChangesDigitsOverFastLinksFirst) {
  Topology fast_b;  // only bytes cost: 1 s over a, a quarter over b
  fast_b.levels = {{"all", 0, {0, 0, 1}}};
  fast_b.axes = {{{"b"}, {0, 0, 4}}};
  Between b("[a=2,b=2]", {64}, "S(0),S(0)", "S(0),S(0) | 0:b>a", std::nullopt, fast_b);
  const Path known = b.lattice.shortest();
  EXPECT_EQ(known.seconds, 16);  // a piece, over a
  // b moves inside and out again, half a piece each time; so half a piece goes over a.
  EXPECT_EQ(b.way(b.wide.improve(known)),
            Way("S(0),S(0) > S(0),SS(0,2) > SS(0,2),SS(0,2) > S(0),S(0) | 0:b>a", 2 + 8 + 2));
  // Where a dimension has no room for that, in another one.
  Between full("[a=2,b=2]", {4, 4}, "S(0),S(0)", "S(0),S(0) | 0:b>a", std::nullopt, fast_b);
  EXPECT_EQ(full.way(full.wide.improve(full.lattice.shortest())),
            Way("S(0),S(0) > S(0),SS(1,2) > SS(0,2),SS(1,2) > S(0),S(0) | 0:b>a", 0.5 + 2 + 0.5));
}

TEST(WideSearch, KeepsAWayThatIsTheCheapest) {
  Between b("[a=2,b=2]", {8, 8}, "S(0),S(1)", "R,R");
  const Path known = b.lattice.shortest();
  EXPECT_EQ(b.way(b.wide.improve(known)), b.way(known));
  // One below every bound is not looked into.
  const Path cheap{known.states, 1};
  EXPECT_EQ(b.way(b.wide.improve(cheap)), Way(b.l.text(known.states), 1));
}

TEST(WideSearch, FindsAWayWithoutAKnownOne) {
  Between b("[a=2,b=2]", {40, 40}, "S(1),R", "R,S(1)");
  EXPECT_EQ(b.way(b.wide.improve(Path{})), Way("S(1),R > S(0),S(1) > R,S(1)", 1220));
  Between local("[a=2]", {5}, "R", "S(0)");
  EXPECT_EQ(local.way(local.wide.improve(Path{})), Way("R > S(0)", 0.625));
}

TEST(WideSearch, FindsTheSameWithAndWithoutAKnownWay) {
  const auto choices = testing::placements({"R", "S(0)", "S(1)", "P(sum)"});
  const auto layouts = testing::all_layouts(Mesh::parse("[a=2,b=3]"), choices);
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      const std::string x = from.placements_text();
      const std::string y = to.placements_text();
      Between with("[a=2,b=3]", {5, 7}, x.c_str(), y.c_str());
      Between without("[a=2,b=3]", {5, 7}, x.c_str(), y.c_str());
      const Path known = with.lattice.shortest();
      const Path path = with.wide.improve(known);
      EXPECT_LE(path.seconds, known.seconds) << x << " -> " << y;
      EXPECT_NEAR(path.seconds, without.wide.improve(Path{}).seconds, 1e-9) << x << " -> " << y;
      ASSERT_FALSE(path.states.empty());
      EXPECT_EQ(with.l.roles.layout(path.states.front()), from);
      EXPECT_EQ(with.l.roles.layout(path.states.back()), to);
      for (std::size_t i = 1; i + 1 < path.states.size(); ++i) {
        EXPECT_TRUE(with.l.roles.is_legal(path.states[i])) << with.l.text(path.states);
      }
    }
  }
}

TEST(WideSearch, KeepsToABoundOfMemory) {
  Between roomy("[a=2]", {4, 4}, "S(0)", "S(1)", 21);
  EXPECT_EQ(roomy.way(roomy.wide.improve(Path{})), Way("S(0) > S(1)", 1616));
  Between tight("[a=2]", {4, 4}, "S(0)", "S(1)", 20);
  EXPECT_EQ(tight.way(tight.wide.improve(Path{})), Way("", kNever));
  EXPECT_EQ(tight.wide.least_peak(), 21);
}

TEST(WideSearch, KnowsTheLeastBoundOfMemory) {
  // At once: two pieces of 32 B. If b shards rows meanwhile, its last step joins 16 B to 32.
  Between b("[a=2,b=2]", {8, 8}, "S(0),R", "S(1),R");
  EXPECT_EQ(b.wide.least_peak(), 16 + 32);
  EXPECT_GT(b.lattice.least_peak(), 16 + 32);
  EXPECT_EQ(Between("[a=2]", {5}, "S(0)", "R").wide.least_peak(), 3 + 5 + 5);  // uneven, in parts
}

TEST(WideSearch, ImprovesWaysOnLargeMeshesToo) {
  Between b("[a=16,b=8]", {256, 256}, "S(1),R", "R,S(1)");
  const Path known = b.lattice.shortest();
  const Path path = b.wide.improve(known);
  EXPECT_LT(path.seconds, known.seconds);
  // As above: 512 B from 2 ranks, 110 + 512 + 256; then 7680 B in 15 rounds, 250 + 7680.
  EXPECT_LE(path.seconds, 878 + 7930);
  EXPECT_EQ(b.l.roles.layout(path.states.back()), b.l.to);
}

}  // namespace
}  // namespace intarsia
