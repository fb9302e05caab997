#include "intarsia/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Ranks = std::vector<std::int64_t>;

Ranks ranks_of(const Mesh& mesh) {
  Ranks out;
  Coordinate at(mesh.axes(), 0);
  for (std::int64_t i = 0; i < mesh.size(); ++i) {
    out.push_back(mesh.rank_at(at));
    EXPECT_EQ(mesh.coordinate_of(out.back()), at) << mesh.to_string();
    for (std::size_t a = mesh.axes(); a-- > 0;) {
      if (++at[a] < mesh.size(a)) break;
      at[a] = 0;
    }
  }
  EXPECT_EQ(Mesh::parse(mesh.to_string()), mesh) << mesh.to_string();
  EXPECT_EQ(mesh.highest(), *std::max_element(out.begin(), out.end())) << mesh.to_string();
  EXPECT_EQ(Mesh::parse(mesh.to_string()).hash(), mesh.hash());
  return out;
}

const Mesh kMesh = Mesh::parse("[dp=2,tp=4]");

TEST(Mesh, CountsRanksWithTheLastAxisFastest) {
  EXPECT_EQ(ranks_of(kMesh), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(kMesh.rank_at({1, 2}), 6);
  EXPECT_EQ(kMesh.size("tp"), 4);
  EXPECT_EQ(kMesh, Mesh({{"dp", 2}, {"tp", 4}}));
}

TEST(Mesh, WithoutAxesHasOneRank) {
  EXPECT_EQ(Mesh().to_string(), "[]");
  EXPECT_EQ(Mesh().size(), 1);
  EXPECT_TRUE(Mesh().contains(0));
  EXPECT_FALSE(Mesh().contains(1));
}

TEST(Mesh, SliceGoesThroughTheMember) {
  EXPECT_EQ(ranks_of(kMesh.slice({"tp"}, 6)), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(kMesh.slice({"tp"}, 6).to_string(), "[tp=4]+4");
  EXPECT_EQ(ranks_of(kMesh.slice({"dp"}, 6)), (Ranks{2, 6}));
  EXPECT_EQ(kMesh.slice({"dp"}, 6).to_string(), "[dp=2:4]+2");
  EXPECT_EQ(ranks_of(kMesh.slice({}, 6)), (Ranks{6}));
}

TEST(Mesh, KnowsItsParentWithoutBeingDifferent) {
  const Mesh part = kMesh.slice({"tp"}, 0);
  EXPECT_EQ(part.parent(), kMesh);
  EXPECT_EQ(part, Mesh({{"tp", 4}}));
  EXPECT_FALSE(part.orphan().parent());
}

TEST(Mesh, RangeTakesPartOfAnAxis) {
  EXPECT_EQ(ranks_of(kMesh.range("tp", 1, 3)), (Ranks{1, 2, 5, 6}));
  EXPECT_EQ(ranks_of(kMesh.range("dp", 1, 2)), (Ranks{4, 5, 6, 7}));
}

TEST(Mesh, FlattenJoinsAxesInTheOrderNamed) {
  EXPECT_EQ(kMesh.flatten({"dp", "tp"}, "all").to_string(), "[all=8]");
  const Mesh swapped = kMesh.flatten({"tp", "dp"}, "all");
  EXPECT_EQ(ranks_of(swapped), (Ranks{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(swapped.to_string(), "[all=4:1*2:4]");
  EXPECT_FALSE(swapped.has_table());
}

TEST(Mesh, FlattenOfDistantAxesNeedsNoTable) {
  const Mesh cube = Mesh::parse("[a=2,b=3,c=2]");
  const Mesh flat = cube.flatten({"a", "c"}, "ac");
  EXPECT_EQ(flat.names(), (std::vector<std::string>{"ac", "b"}));
  EXPECT_EQ(ranks_of(flat), (Ranks{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}));
  EXPECT_FALSE(flat.has_table());
}

TEST(Mesh, SplitUndoesFlatten) {
  const Mesh flat = kMesh.flatten({"dp", "tp"}, "all");
  EXPECT_EQ(flat.split("all", {{"dp", 2}, {"tp", 4}}), kMesh);
  const Mesh swapped = kMesh.flatten({"tp", "dp"}, "all");
  EXPECT_EQ(swapped.split("all", {{"tp", 4}, {"dp", 2}}).reorder({"dp", "tp"}), kMesh);
  EXPECT_EQ(swapped.split("all", {{"x", 2}, {"y", 2}, {"dp", 2}}).flatten({"x", "y"}, "tp"),
            kMesh.reorder({"tp", "dp"}));
}

TEST(Mesh, ReorderListsAxesDifferently) {
  EXPECT_EQ(ranks_of(kMesh.reorder({"tp", "dp"})), (Ranks{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(kMesh.reorder({"tp", "dp"}).to_string(), "[tp=4:1,dp=2:4]");
}

TEST(Mesh, PermuteReordersDevices) {
  const Ranks reversed{3, 2, 1, 0};
  const Mesh back = kMesh.permute("tp", reversed);
  EXPECT_EQ(ranks_of(back), (Ranks{3, 2, 1, 0, 7, 6, 5, 4}));
  EXPECT_EQ(back.to_string(), "[dp=2:4,tp=4:-1]+3");
  const Ranks odd{0, 3, 1, 2};
  const Mesh mixed = kMesh.permute("tp", odd);
  EXPECT_TRUE(mixed.has_table());
  EXPECT_EQ(ranks_of(mixed), (Ranks{0, 3, 1, 2, 4, 7, 5, 6}));
  EXPECT_EQ(mixed.to_string(), "[dp=2,tp=4]{0,3,1,2,4,7,5,6}");
}

TEST(Mesh, TableMeshesCanBeSlicedRangedFlattenedAndSplit) {
  const Mesh mixed = Mesh::parse("[dp=2,tp=4]{0,3,1,2,4,7,5,6}");
  EXPECT_EQ(ranks_of(mixed.slice({"tp"}, 5)), (Ranks{4, 7, 5, 6}));
  EXPECT_EQ(ranks_of(mixed.slice({"dp"}, 5)), (Ranks{1, 5}));
  EXPECT_FALSE(mixed.slice({"dp"}, 5).has_table());
  EXPECT_EQ(ranks_of(mixed.range("tp", 1, 3)), (Ranks{3, 1, 7, 5}));
  EXPECT_EQ(ranks_of(mixed.flatten({"tp", "dp"}, "all")), (Ranks{0, 4, 3, 7, 1, 5, 2, 6}));
  EXPECT_EQ(ranks_of(mixed.split("tp", {{"x", 2}, {"y", 2}})), (Ranks{0, 3, 1, 2, 4, 7, 5, 6}));
  EXPECT_FALSE(mixed.contains(8));
}

TEST(Mesh, OfRanksFindsStrides) {
  const Ranks ranks{8, 12, 9, 13};
  const Mesh mesh = Mesh::of_ranks({{"a", 2}, {"b", 2}}, ranks);
  EXPECT_EQ(mesh.to_string(), "[a=2:1,b=2:4]+8");
  EXPECT_EQ(mesh, Mesh::strided({{"a", {{2, 1}}}, {"b", {{2, 4}}}}, 8));
  const Ranks crossing{0, 2, 4, 3, 5, 7};  // additive, but the steps do not nest
  EXPECT_TRUE(Mesh::of_ranks({{"a", 2}, {"b", 3}}, crossing).has_table());
  EXPECT_EQ(ranks_of(Mesh::of_ranks({{"a", 2}, {"b", 3}}, crossing)), crossing);
}

TEST(Mesh, RangeOfAFlattenedAxisMayNeedATable) {
  const Mesh swapped = kMesh.flatten({"tp", "dp"}, "all");
  EXPECT_EQ(ranks_of(swapped.range("all", 1, 4)), (Ranks{4, 1, 5}));
  EXPECT_FALSE(swapped.range("all", 2, 6).has_table());
}

TEST(Mesh, LargeMeshesAreSmall) {
  const Mesh big = Mesh::parse("[pp=16,dp=64,cp=2,tp=8,ep=8]");
  EXPECT_EQ(big.size(), 131072);
  EXPECT_EQ(big.rank_at(*big.coordinate_of(98765)), 98765);
  EXPECT_EQ(big.slice({"dp"}, 98765).size(), 64);
}

TEST(Mesh, RefusalsNameTheValues) {
  expect_error<ValueError>([] { Mesh({{"a", 2}, {"a", 3}}); }, {"two axes", "'a'"});
  expect_error<ValueError>([] { Mesh({{"a", 0}}); }, {"'a'", "size 0", "at least 1"});
  expect_error<ValueError>([] { Mesh({{"2a", 2}}); }, {"'2a'", "letters"});
  expect_error<ValueError>([] { (void)kMesh.size("pp"); }, {"'pp'", "[dp=2,tp=4]", "dp, tp"});
  expect_error<ValueError>([] { (void)kMesh.slice({"tp"}, 9); }, {"rank 9", "[dp=2,tp=4]"});
  expect_error<ValueError>([] { (void)kMesh.slice({"tp", "tp"}, 1); }, {"'tp'", "twice"});
  expect_error<ValueError>([] { (void)kMesh.range("tp", 2, 5); }, {"[2,5)", "<= 4"});
  expect_error<ValueError>([] { (void)kMesh.rank_at({0, 4}); }, {"index 4", "'tp'"});
  expect_error<ValueError>([] { (void)kMesh.rank_at({0}); }, {"2 axes", "has 1"});
  expect_error<ValueError>(
      [] {
        (void)kMesh.split("tp", {{"x", 3}, {"y", 2}});
      },
      {"size 4", "3 x 2"});
  expect_error<ValueError>([] { (void)kMesh.permute("dp", Ranks{0, 0}); }, {"(0,0)", "each once"});
  expect_error<ValueError>(
      [] {
        (void)Mesh::of_ranks({{"a", 2}}, Ranks{1, 1});
      },
      {"rank 1", "twice"});
  expect_error<ValueError>(
      [] {
        (void)Mesh::of_ranks({{"a", 2}}, Ranks{1});
      },
      {"2 places", "1 ranks"});
  expect_error<ValueError>(
      [] {
        (void)Mesh::strided({{"a", {{2, 1}}}, {"b", {{2, 1}}}});
      },
      {"steps must nest", "of_ranks"});
  expect_error<ValueError>([] { (void)Mesh::strided({{"a", {{2, -1}}}}); }, {"rank -1"});
  expect_error<ValueError>([] { (void)Mesh::parse("[a=3:9223372036854775807]"); }, {"'a'", "2^40"});
  expect_error<ValueError>([] { (void)Mesh::parse("[a=2:1]+9223372036854775807"); }, {"base rank"});
  expect_error<ValueError>([] { (void)Mesh::parse("[a=4294967296:1*4294967296:1]"); }, {"2^40"});
  expect_error<ValueError>([] { (void)Mesh::parse("[x=0*2]"); }, {"'x'", "at least 1"});
  expect_error<ValueError>(
      [] {
        (void)Mesh::of_ranks({{"x", 2}}, Ranks{0, std::int64_t{1} << 62});
      },
      {"2^40"});
  expect_error<ValueError>([] { (void)kMesh.split("tp", {}); }, {"'tp'", "no axes"});
  expect_error<ValueError>([] { (void)Mesh::parse("[dp=2"); }, {"\"[dp=2\"", "','", "ends"});
  expect_error<ValueError>([] { (void)Mesh::parse("[dp=2,tp=4:1]"); }, {"a step for every axis"});
  expect_error<ValueError>(
      [] {
        Mesh({{"a", 1},
              {"b", 1},
              {"c", 1},
              {"d", 1},
              {"e", 1},
              {"f", 1},
              {"g", 1},
              {"h", 1},
              {"i", 1}});
      },
      {"at most 8", "got 9"});
}

}  // namespace
}  // namespace intarsia
