#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "error_text.h"
#include "intarsia/between.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// The most that a rank misses, and all together.
std::pair<std::int64_t, std::int64_t> missing(const char* from, const char* to, const Shape& shape,
                                              std::int64_t element_size = 1) {
  const Traffic t = traffic_between(Layout::parse(from), Layout::parse(to), shape, element_size);
  EXPECT_EQ(t.received, t.missing);
  EXPECT_EQ(t.received_by_all, t.missing_by_all);
  return {t.missing, t.missing_by_all};
}

std::string put_in_order(const char* from, const char* to, const Shape& shape) {
  return relabelled(Layout::parse(from), Layout::parse(to), shape).to_string();
}

/// The text of a mesh, in strides where these can say it.
std::string mesh(const char* text) { return Mesh::parse(text).to_string(); }

TEST(TrafficBetween, CountsWhatARankDoesNotHold) {
  using Elements = std::pair<std::int64_t, std::int64_t>;
  // Rank 0 keeps its first half; rank 1 has 4..7 and needs 2,3; ranks 2 and 3 are new.
  EXPECT_EQ(missing("[a=2] S(0)", "[b=4] S(0)", {8}), Elements(2, 6));
  EXPECT_EQ(missing("[a=2] S(0)", "[b=4] S(0)", {8}, 4), Elements(8, 24));
  EXPECT_EQ(missing("[a=2] S(0)", "[b=2] S(0)", {5}), Elements(0, 0));
  EXPECT_EQ(missing("[a=2] S(0)", "[b=2]+2 S(0)", {5}), Elements(3, 5));
  EXPECT_EQ(missing("[a=4] S(0)", "[b=1] R", {5}), Elements(3, 3));
  // Blocks: rank 0 has 0,1,4,5 of what it needs, 0..3.
  EXPECT_EQ(missing("[a=2] SS(0,2)", "[b=2] S(0)", {8}), Elements(2, 4));
}

TEST(Relabelled, PutsEachRankWhereItsPieceIs) {
  EXPECT_EQ(put_in_order("[a=4] S(0)", "[b=4:-1]+3 S(0)", {8}), mesh("[b=4]"));
  EXPECT_EQ(put_in_order("[a=4]{2,0,3,1} S(0)", "[b=2,c=2] S(0),S(0)", {8}),
            mesh("[b=2,c=2]{2,0,3,1}"));
  // Two of three have moved; the third is new, and gets what is left.
  EXPECT_EQ(put_in_order("[a=2] S(0)", "[b=3]{5,0,1} S(0)", {6}), mesh("[b=3]{0,5,1}"));
}

TEST(Relabelled, LeavesRanksWhereOrderDoesNotMatter) {
  EXPECT_EQ(put_in_order("[a=4] S(0)", "[b=4]{3,1,0,2} R", {8}), mesh("[b=4]{3,1,0,2}"));
  EXPECT_EQ(put_in_order("[a=4] R", "[b=4]{3,1,0,2} S(0)", {8}), mesh("[b=4]{3,1,0,2}"));
  EXPECT_EQ(put_in_order("[a=2] S(0)", "[b=2]+2 S(0)", {8}), mesh("[b=2]+2"));
  EXPECT_EQ(put_in_order("[a=2] S(0)", "[b=2] S(0)", {0}), mesh("[b=2]"));
  EXPECT_EQ(put_in_order("[a=1] R", "[b=1] S(0)", {8}), mesh("[b=1]"));
}

/// The least that all together miss, over all orders of four ranks.
std::int64_t least_of_all_orders(const Layout& from, const Layout& to, const Shape& shape) {
  std::array<std::int64_t, 4> order{0, 1, 2, 3};
  std::int64_t least = 1 << 20;
  do {
    const Mesh mesh = Mesh::of_ranks({{"x", 2}, {"y", 2}}, order);
    const Layout there = Layout::parse(to.placements_text(), mesh);
    least = std::min(least, traffic_between(from, there, shape, 1).missing_by_all);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

TEST(Relabelled, MissesTheLeastOfAllOrders) {
  const Shape shape{7, 5};
  for (const char* from : {"[a=4] S(0)", "[a=4]{3,1,0,2} S(1)", "[a=3] S(0)", "[a=2,b=2] S(1),S(0)",
                           "[a=2] SS(0,2)", "[a=2,b=3] S(0),S(0)"}) {
    for (const char* to : {"S(0),S(0)", "S(0),S(0) | 0:y>x", "S(1),S(0)", "R,S(1)", "SS(0,2),R"}) {
      const Layout x = Layout::parse(from);
      const Layout y = Layout::parse(to, Mesh::parse("[x=2,y=2]"));
      const Layout there = Layout::parse(to, relabelled(x, y, shape));
      EXPECT_EQ(traffic_between(x, there, shape, 1).missing_by_all,
                least_of_all_orders(x, y, shape))
          << from << " -> " << to;
    }
  }
}

TEST(ServingReplica, IsARanksOwnOrByTurns) {
  const Layout from = Layout::parse("[a=2,b=3] S(0),R");
  const Mesh to = Mesh::parse("[x=4]+4");
  // Ranks 4 and 5 are at (1,1) and (1,2). 6 and 7 stand at places 2 and 3.
  EXPECT_EQ(serving_replica(from, to, 0), (Coordinate{1, 1}));
  EXPECT_EQ(serving_replica(from, to, 1), (Coordinate{1, 2}));
  EXPECT_EQ(serving_replica(from, to, 2), (Coordinate{0, 2}));
  EXPECT_EQ(serving_replica(from, to, 3), (Coordinate{0, 0}));
  // Of several axes that shard nothing the last varies fastest.
  const Layout replicated = Layout::parse("[a=2,b=2,c=2] R,S(0),R");
  EXPECT_EQ(serving_replica(replicated, Mesh::parse("[x=4]+8"), 1), (Coordinate{0, 0, 1}));
  EXPECT_EQ(serving_replica(replicated, Mesh::parse("[x=4]+8"), 2), (Coordinate{1, 0, 0}));
}

TEST(Relabelled, RefusalsNameTheValues) {
  const Layout sharded = Layout::parse("[a=2] S(0)");
  const Layout partial = Layout::parse("[a=2] P(sum)");
  expect_error<ValueError>([&] { (void)relabelled(partial, sharded, Shape{4}); },
                           {"[relabelled]", "[a=2] P(sum) has partial values; reduce them first"});
  expect_error<ValueError>([&] { (void)traffic_between(sharded, partial, Shape{4}, 4); },
                           {"[traffic_between]", "[a=2] P(sum) has partial values"});
  expect_error<ValueError>([&] { (void)traffic_between(sharded, sharded, Shape{}, 4); },
                           {"[traffic_between]", "dimension 0"});
  const Layout large = Layout::parse("[a=1025] S(0)");
  expect_error<ValueError>([&] { (void)relabelled(sharded, large, Shape{4}); },
                           {"[a=1025] has 1025 ranks; at most 1024"});
}

}  // namespace
}  // namespace intarsia
