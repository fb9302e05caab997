#include "intarsia/topology.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/layout.h"
#include "layout/coordinates.h"

namespace intarsia {
namespace {

using testing::expect_error;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr std::string_view kExample = R"({
    "copy_gigabytes_per_s": 1000, "gigaflops": 60000,
    "levels": [
      { "name": "node", "ranks": 8, "latency_us": 2, "overhead_us": 8, "gigabytes_per_s": 200 },
      { "name": "cluster", "latency_us": 8, "overhead_us": 15, "gigabytes_per_s": 25 } ],
    "axes": [
      { "axes": ["dp", "tp"], "latency_us": 8, "overhead_us": 15, "gigabytes_per_s": 60 } ],
    "relative": { "all_gather": 0.9, "all_reduce": 1.2 } })";

TEST(Topology, StandardCountsInBytes) {
  const Topology t = Topology::standard();
  ASSERT_EQ(t.levels.size(), 1U);
  EXPECT_EQ(t.levels[0].ranks, 0);
  const Link& link = t.link(Mesh::parse("[a=2,b=1000]"), AxisList{0, 1});
  EXPECT_DOUBLE_EQ(link.overhead * link.bandwidth, 8 * 1024);
  EXPECT_DOUBLE_EQ(link.latency * link.bandwidth, 1024);
  EXPECT_DOUBLE_EQ(t.flops / link.bandwidth, 50 * 2);
  EXPECT_DOUBLE_EQ(t.copy_bandwidth / link.bandwidth, 8);
  EXPECT_EQ(t.all_gather, 1);
  EXPECT_EQ(t.all_reduce, 1);
}

TEST(Topology, ReadsTheExampleOfItsHeader) {
  const Topology t = Topology::parse(kExample);
  EXPECT_EQ(t.copy_bandwidth, 1e12);
  EXPECT_EQ(t.flops, 60e12);
  ASSERT_EQ(t.levels.size(), 2U);
  EXPECT_EQ(t.levels[0].name, "node");
  EXPECT_EQ(t.levels[0].ranks, 8);
  EXPECT_DOUBLE_EQ(t.levels[0].link.latency, 2e-6);
  EXPECT_DOUBLE_EQ(t.levels[0].link.overhead, 8e-6);
  EXPECT_EQ(t.levels[0].link.bandwidth, 200e9);
  EXPECT_EQ(t.levels[1].name, "cluster");
  EXPECT_EQ(t.levels[1].ranks, 0);
  ASSERT_EQ(t.axes.size(), 1U);
  EXPECT_EQ(t.axes[0].axes, (std::vector<std::string>{"dp", "tp"}));
  EXPECT_EQ(t.axes[0].link.bandwidth, 60e9);
  EXPECT_EQ(t.all_gather, 0.9);
  EXPECT_EQ(t.all_reduce, 1.2);
}

TEST(Topology, WhatIsLeftOutCostsNothing) {
  const Topology t = Topology::parse(R"({"levels": [{}]})");
  EXPECT_EQ(t, Topology());
  EXPECT_EQ(t.levels[0].link, (Link{0, 0, kInfinity}));
  EXPECT_EQ(Topology::parse(R"({"levels": [{"gigabytes_per_s": null}], "gigaflops": null})"), t);
  EXPECT_EQ(Topology::parse(t.to_json()), t);
}

TEST(Topology, NodesHoldNeighbours) {
  const Topology t = Topology::parse(kExample);
  const auto level = [&](const char* mesh, const AxisList& axes) {
    const Link& link = t.link(Mesh::parse(mesh), axes);
    for (const Topology::Level& l : t.levels) {
      if (link == l.link) return l.name;
    }
    return std::string("other");
  };
  EXPECT_EQ(level("[a=2,b=8]", {1}), "node");
  EXPECT_EQ(level("[a=2,b=8]", {0}), "cluster");
  EXPECT_EQ(level("[a=2,b=16]", {1}), "cluster");
  EXPECT_EQ(level("[a=2,b=2,c=4]", {1, 2}), "node");
  EXPECT_EQ(level("[b=8]+8", {0}), "node");
  EXPECT_EQ(level("[b=8]+4", {0}), "cluster");  // ranks 4..11
  // The first group is 0..5, the last 6..11.
  EXPECT_EQ(level("[a=2,b=6]", {1}), "cluster");
  EXPECT_EQ(level("[a=16,b=1]", {1}), "node");
  // The second group is 6..11; the first and the last, 42..47, are inside.
  EXPECT_EQ(level("[a=8,b=6]", {1}), "cluster");
  // Both ends of the group are in the first node, rank 9 between them is not.
  EXPECT_EQ(level("[a=3]{0,9,1}", {0}), "cluster");
}

TEST(Topology, ALevelHoldsAGroupIfItHoldsEveryRank) {
  const auto holds_all = [](const Mesh& mesh, const AxisList& axes, std::int64_t ranks) {
    for (std::int64_t i = 0; i < mesh.size(); ++i) {
      const Coordinate at = coordinate_at(mesh, i);
      if (mesh.rank_at(at) / ranks != mesh.rank_at(coordinate_along(mesh, axes, 0, at)) / ranks)
        return false;
    }
    return true;
  };
  int held = 0;
  for (const char* text : {"[a=4,b=3]", "[a=2,b=2,c=3]+5", "[a=3:1,b=4:3]",
                           "[a=2:4,b=2:1*2:8,c=2:2]+1", "[a=4]{3,0,2,1}", "[a=2,b=2]{0,5,1,4}"}) {
    const Mesh mesh = Mesh::parse(text);
    for (std::int64_t ranks = 1; ranks < 30; ++ranks) {
      Topology t;
      t.levels = {{"node", ranks, {.latency = 1}}, {"all", 0, {.latency = 2}}};
      for (unsigned set = 1; set < (1U << mesh.axes()); ++set) {
        AxisList axes;
        for (std::size_t a = 0; a < mesh.axes(); ++a) {
          if ((set >> a & 1U) != 0) axes.push_back(static_cast<std::int8_t>(a));
        }
        const bool node = t.link(mesh, axes).latency == 1;
        EXPECT_EQ(node, holds_all(mesh, axes, ranks)) << text << " in nodes of " << ranks;
        held += node ? 1 : 0;
      }
    }
  }
  EXPECT_GT(held, 100);
}

TEST(Topology, AxesWithLinksOfTheirOwnComeFirst) {
  const Topology t = Topology::parse(kExample);
  const auto bandwidth = [&](const char* mesh, const AxisList& axes) {
    return t.link(Mesh::parse(mesh), axes).bandwidth;
  };
  EXPECT_EQ(bandwidth("[dp=2,tp=2]", {0, 1}), 60e9);
  EXPECT_EQ(bandwidth("[tp=2,pp=2,dp=2]", {0, 2}), 60e9);  // in any order
  EXPECT_EQ(bandwidth("[dp=2,tp=2]", {1}), 200e9);
  EXPECT_EQ(bandwidth("[dp=2,tp=2,pp=2]", {0, 1, 2}), 200e9);
  EXPECT_EQ(bandwidth("[dp=2,pp=2]", {0, 1}), 200e9);
}

TEST(Topology, RefusesWhatItDoesNotKnow) {
  const auto refused = [](const char* text, std::initializer_list<std::string> parts) {
    expect_error<ValueError>([&] { (void)Topology::parse(text); }, parts);
  };
  refused("[]", {"[Topology]", "a topology is no object: []"});
  refused(R"({"levels": []})", {"there are no levels"});
  refused(R"({"levels": [7]})", {"a level is no object: 7"});
  refused(R"({"levels": [{"latency": 1}]})", {"a level has no 'latency'", "latency_us"});
  refused(R"({"levels": [{}], "axes": [{"axis": "a"}]})", {"an entry of axes has no 'axis'"});
  refused(R"({"levels": [{}], "axes": [{"latency_us": 1}]})", {"names no axes"});
  refused(R"({"levels": [{}], "axes": [{"axes": [1]}]})", {"names no axes", "[1]"});
  refused(R"({"levels": [{}], "relative": {"reduce": 1}})",
          {"relative has no 'reduce'", "all_gather, all_reduce"});
}

TEST(Topology, RefusesNumbersThatMakeNoSense) {
  const auto refused = [](const char* text, std::initializer_list<std::string> parts) {
    expect_error<ValueError>([&] { (void)Topology::parse(text); }, parts);
  };
  refused(R"({"levels": [{"latency_us": -1}]})", {"latency_us is -1", "at least 0"});
  refused(R"({"levels": [{"overhead_us": "3"}]})", {"overhead_us is \"3\"", "not a number"});
  refused(R"({"levels": [{}], "copy_gigabytes_per_s": 0})", {"copy_gigabytes_per_s is 0"});
  refused(R"({"levels": [{"ranks": 2.5}]})", {"a level joins 2.5 ranks"});
  refused(R"({"levels": [{"ranks": 1e300}]})", {"a level joins 1e+300 ranks"});
  refused(R"({"levels": [{"ranks": 4}, {"ranks": 4}]})", {"level 0 joins 4 ranks and level 1 4"});
  refused(R"({"levels": [{}, {}]})", {"level 0 joins 0 ranks", "the last all"});
}

TEST(Topology, ReadsAFile) {
  const std::string path = ::testing::TempDir() + "topology_test.json";
  std::ofstream(path) << kExample;
  EXPECT_EQ(Topology::load(path), Topology::parse(kExample));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace intarsia
