#include "intarsia/step_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using Kind = StepEvent::Kind;
using testing::expect_error;

TEST(Curve, IsInterpolatedByLogarithms) {
  const Curve curve({{1, 10}, {100, 1000}, {1000, 1000}});
  EXPECT_DOUBLE_EQ(curve.at(0.1), 10);
  EXPECT_DOUBLE_EQ(curve.at(1), 10);
  EXPECT_DOUBLE_EQ(curve.at(10), 100);
  EXPECT_DOUBLE_EQ(curve.at(100), 1000);
  EXPECT_DOUBLE_EQ(curve.at(500), 1000);
  EXPECT_DOUBLE_EQ(curve.at(1e9), 1000);
}

TEST(Curve, RefusesWhatIsNone) {
  expect_error<ValueError>([] { Curve({{1, 1}, {1, 2}}); }, {"point 1", "(1, 2)", "ascend"});
  expect_error<ValueError>([] { Curve({{0, 1}}); }, {"point 0", "above 0"});
  expect_error<ValueError>([] { Curve({{1, NAN}}); }, {"point 0", "above 0"});
}

constexpr std::string_view kText = R"({
    "levels": [{"name": "all", "latency_us": 1, "overhead_us": 2, "gigabytes_per_s": 3}],
    "gigaflops": 100,
    "compute": {
      "call_us": 5, "products": [[0.5, 20], [16, 80]], "memory": [[12, 30], [12288, 8]],
      "ns_per_element": {"gelu": 2.5}, "attention": [[64, 50]], "attention_backward": [[64, 75]], "skew": 0.01, "hides": 0.25,
      "collectives": [{"name": "all_reduce", "ranks": 4, "kib_us": [[4, 100], [1024, 900]]}] } })";

TEST(StepCosts, ReadsAFile) {
  const StepCosts costs = StepCosts::parse(kText);
  EXPECT_EQ(costs.topology.flops, 100e9);
  EXPECT_DOUBLE_EQ(costs.call, 5e-6);
  EXPECT_DOUBLE_EQ(costs.products.at(16e6), 80e9);
  EXPECT_DOUBLE_EQ(costs.memory.at(12 * 1024), 30e9);
  EXPECT_DOUBLE_EQ(costs.seconds_per_element.at("gelu"), 2.5e-9);
  EXPECT_DOUBLE_EQ(costs.attention.at(32), 50e9);
  EXPECT_DOUBLE_EQ(costs.attention_backward.at(64), 75e9);
  EXPECT_EQ(costs.skew, 0.01);
  EXPECT_EQ(costs.hides, 0.25);
  EXPECT_DOUBLE_EQ(costs.collectives.at({"all_reduce", 4}).at(4096), 100e-6);
}

TEST(StepCosts, ReadsItsTextBack) {
  const StepCosts costs = StepCosts::parse(kText);
  const std::string text = costs.to_json();
  EXPECT_EQ(StepCosts::parse(text).to_json(), text);
  EXPECT_EQ(StepCosts::parse(StepCosts().to_json()).to_json(), StepCosts().to_json());
}

TEST(StepCosts, ATopologyAloneIsEnough) {
  const StepCosts costs = StepCosts::parse(R"({"levels": [{}], "gigaflops": 7})");
  EXPECT_TRUE(costs.products.empty());
  EXPECT_EQ(costs.hides, 1);
}

TEST(StepCosts, RefusesWhatItDoesNotKnow) {
  const auto refused = [](std::string_view compute, std::initializer_list<std::string> parts) {
    expect_error<ValueError>(
        [&] { StepCosts::parse(R"({"levels": [{}], "compute": )" + std::string(compute) + "}"); },
        parts);
  };
  refused(R"({"calls": 1})", {"compute has no 'calls'", "call_us, products"});
  refused("[1]", {"compute is no object: [1]"});
  refused(R"({"call_us": -1})", {"call_us is -1"});
  refused(R"({"products": 3})", {"products is 3, no list"});
  refused(R"({"products": [[1]]})", {"products has [1], no pair"});
  refused(R"({"products": [[2, 1], [1, 1]]})", {"point 1"});
  refused(R"({"collectives": [{"name": 3}]})", {"no name, ranks and kib_us"});
  refused(R"({"collectives": [{"name": "x", "ranks": 2, "kib_us": []}]})", {"kib_us has no pairs"});
  refused(R"({"hides": 1.5})", {"hides is a part", "not 1.5"});
  expect_error<ValueError>([] { StepCosts::load("/nowhere/x.json"); }, {"/nowhere/x.json"});
}

const Mesh& mesh() {
  static const Mesh mesh({{"dp", 2}, {"tp", 2}});
  return mesh;
}

StepCosts costs() {
  StepCosts out;
  out.topology.levels = {{"node", 2, {.latency = 1, .overhead = 2, .bandwidth = 10}},
                         {"all", 0, {.latency = 3, .overhead = 4, .bandwidth = 5}}};
  out.topology.copy_bandwidth = 50;
  out.topology.flops = 50;
  return out;
}

StepEvent kernel(double bytes) { return {.name = "add", .bytes = bytes}; }

StepEvent collective(const char* name, double bytes, std::vector<std::int64_t> ranks) {
  return {.kind = Kind::collective,
          .name = name,
          .bytes = bytes,
          .ranks = std::make_shared<const std::vector<std::int64_t>>(std::move(ranks))};
}

StepEvent wait(std::size_t of) { return {.kind = Kind::wait, .of = of}; }

double total(const std::vector<StepEvent>& events, const StepCosts& costs) {
  return step_time(events, costs, mesh()).total;
}

TEST(StepTime, AKernelTakesWhatItComputesOrMoves) {
  EXPECT_DOUBLE_EQ(total({kernel(300)}, costs()), 3);
  EXPECT_DOUBLE_EQ(total({{.name = "mm", .products = 500, .bytes = 300}}, costs()), 10);
  EXPECT_DOUBLE_EQ(total({{.name = "bmm", .products = 50, .count = 10, .bytes = 300}}, costs()),
                   10);
  StepCosts more = costs();
  more.call = 0.5;
  more.seconds_per_element["gelu"] = 0.01;
  EXPECT_DOUBLE_EQ(total({{.name = "gelu", .elements = 700, .bytes = 300}}, more), 7);
  EXPECT_DOUBLE_EQ(total({{.name = "gelu", .elements = 7, .bytes = 300}}, more), 3);
  EXPECT_DOUBLE_EQ(total({{.name = "gelu", .is_call = true}, kernel(100)}, more), 1.5);
}

TEST(StepTime, AttentionHasARateOfItsOwn) {
  StepCosts c = costs();
  c.topology.attention = 0.5;
  EXPECT_DOUBLE_EQ(total({{.name = "attention", .attention = 100}}, c), 4);
  c.attention = Curve({{64, 20}});
  c.attention_backward = Curve({{64, 10}});
  EXPECT_DOUBLE_EQ(total({{.name = "attention", .attention = 100, .head_size = 64}}, c), 5);
  EXPECT_DOUBLE_EQ(total({{.name = "attention_backward", .attention = 100, .head_size = 64}}, c),
                   10);
}

TEST(StepTime, CurvesDecideWhereTheyWereMeasured) {
  StepCosts c = costs();
  c.products = Curve({{10, 1}, {1000, 100}});
  EXPECT_DOUBLE_EQ(total({{.name = "mm", .products = 100}}, c), 10);
  c.memory = Curve({{100, 1000}, {200, 10}});
  EXPECT_DOUBLE_EQ(total({kernel(100), kernel(400)}, c), 0.1 + 40);
  EXPECT_DOUBLE_EQ(total({{.name = "add", .bytes = 400, .in_place = true}}, c), 4);
}

TEST(StepTime, CollectivesArePricedByTheLinkOfTheirRanks) {
  // overhead + messages * latency + received / bandwidth
  EXPECT_DOUBLE_EQ(total({collective("all_to_all", 100, {0, 1}), wait(0)}, costs()), 2 + 1 + 5);
  EXPECT_DOUBLE_EQ(total({collective("all_gather", 100, {0, 2}), wait(0)}, costs()), 4 + 3 + 10);
  EXPECT_DOUBLE_EQ(total({collective("all_reduce", 100, {0, 1, 2, 3}), wait(0)}, costs()),
                   4 + 6 * 3 + 2 * 75 / 5.0);
  StepCosts c = costs();
  c.collectives[{"all_to_all", 2}] = Curve({{10, 1}, {100, 2}});
  EXPECT_DOUBLE_EQ(total({collective("all_to_all", 100, {0, 1}), wait(0)}, c), 2);
  EXPECT_DOUBLE_EQ(total({collective("all_to_all", 1000, {0, 1}), wait(0)}, c), 20);
  EXPECT_DOUBLE_EQ(total({collective("all_to_all", 100, {0}), wait(0)}, c), 0) << "of one rank";
}

TEST(StepTime, WhatIsComputedMeanwhileHidesACollective) {
  const StepEvent exchange = collective("all_to_all", 100, {0, 1});  // 8 s
  EXPECT_DOUBLE_EQ(total({exchange, kernel(300), wait(0)}, costs()), 8);
  EXPECT_DOUBLE_EQ(total({exchange, kernel(1000), wait(0)}, costs()), 10);
  EXPECT_DOUBLE_EQ(total({exchange, wait(0), kernel(300)}, costs()), 11);
  EXPECT_DOUBLE_EQ(total({exchange, kernel(300)}, costs()), 8) << "nobody waits, and it ends";
  const StepTime time =
      step_time(std::vector{exchange, kernel(300), wait(0), wait(0)}, costs(), mesh());
  EXPECT_DOUBLE_EQ(time.computes, 3);
  EXPECT_DOUBLE_EQ(time.sends, 8);
  EXPECT_DOUBLE_EQ(time.waits, 5);
  StepCosts half = costs();
  half.hides = 0.5;
  EXPECT_DOUBLE_EQ(total({exchange, kernel(300), wait(0)}, half), 8 + 1.5);
  half.hides = 0;
  EXPECT_DOUBLE_EQ(total({exchange, kernel(1000), wait(0)}, half), 10 + 8);
}

TEST(StepTime, ACollectiveBeginsWhenTheLastRankComes) {
  const StepEvent exchange = collective("all_to_all", 100, {0, 1});  // 8 s
  StepCosts c = costs();
  c.skew = 0.5;
  EXPECT_DOUBLE_EQ(total({kernel(1600), exchange, wait(1)}, c), 16 + 2 + 8);
  EXPECT_DOUBLE_EQ(total({kernel(1600), exchange, wait(1), exchange, wait(3)}, c), 26 + 8)
      << "they are together again";
  EXPECT_DOUBLE_EQ(total({kernel(1600), exchange, kernel(2000), wait(1)}, c), 36) << "hidden";
}

TEST(StepTime, CollectivesFollowOneAnother) {
  const StepEvent exchange = collective("all_to_all", 100, {0, 1});
  EXPECT_DOUBLE_EQ(total({exchange, exchange, wait(0), wait(1)}, costs()), 16);
  EXPECT_DOUBLE_EQ(total({exchange, exchange, wait(1), wait(0)}, costs()), 16);
}

TEST(StepTime, RefusesEventsThatCannotBe) {
  const auto refused = [](const std::vector<StepEvent>& events,
                          std::initializer_list<std::string> parts) {
    expect_error<ValueError>([&] { step_time(events, costs(), mesh()); }, parts);
    expect_error<ValueError>([&] { schedule_text(events); }, parts);
  };
  refused({kernel(1), wait(0)}, {"event 1 waits for event 0", "no collective before it"});
  refused({wait(3)}, {"event 0 waits for event 3"});
  refused({{.kind = Kind::collective, .name = "all_reduce"}}, {"event 0, all_reduce", "no ranks"});
}

TEST(StepTime, TheOrderOfAStepIsSaid) {
  const std::vector<StepEvent> events{
      {.name = "mm"}, {.name = "mm", .is_call = true},        {.name = "silu"},
      {.name = "mm"}, collective("all_gather", 1536, {0, 1}), {.name = "add"},
      wait(4)};
  EXPECT_EQ(schedule_text(events),
            "computes     3 kernels, 1 call: mm 2, silu 1\n"
            "begins   #1  all_gather of 1536 B among 2 ranks\n"
            "computes     1 kernel, 0 calls: add 1\n"
            "waits    #1\n");
  EXPECT_EQ(schedule_text({}), "");
}

TEST(StepTime, IsSaidAndDrawn) {
  const StepTime time = step_time(
      std::vector{collective("all_to_all", 100, {0, 1}), kernel(300), wait(0)}, costs(), mesh());
  EXPECT_EQ(time.to_string(),
            "8000 ms: computes 3000 ms, sends 8000 ms, of which 3000 ms are hidden");
  const auto trace = nlohmann::json::parse(time.to_trace());
  ASSERT_EQ(trace["traceEvents"].size(), 4U);
  EXPECT_EQ(trace["traceEvents"][2]["name"], "all_to_all");
  EXPECT_EQ(trace["traceEvents"][3]["dur"], 3e6);
  EXPECT_DOUBLE_EQ(total({}, costs()), 0);
}

}  // namespace
}  // namespace intarsia
