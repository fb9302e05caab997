#include "plan/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace intarsia {
namespace {

Step step(StepKind kind, const char* mesh, const char* from, const char* to, double seconds) {
  const Mesh m = Mesh::parse(mesh);
  return {kind, {0}, Layout::parse(from, m), Layout::parse(to, m), 1, seconds};
}

/// S(0) -> R -> S(1) of 3 x 4 elements, in place of an exchange.
PlanReport detour() {
  const Step gather = step(StepKind::all_gather, "[a=2]", "S(0)", "R", 9.264e-6);
  const Step slice = step(StepKind::slice, "[a=2]", "R", "S(1)", 2e-9);
  return PlanReport({gather.before, slice.after, {3, 4}, 4, {gather, slice}, 9.266e-6, 80});
}

PlanReport nothing(const char* mesh, const char* from, const char* to) {
  const Mesh m = Mesh::parse(mesh);
  return PlanReport({Layout::parse(from, m), Layout::parse(to, m), {4, 4}});
}

TEST(ReportText, OfBytesHasFourDigits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(48), "48 B");
  EXPECT_EQ(bytes_text(10 * 1024 - 1), "10239 B");
  EXPECT_EQ(bytes_text(10 * 1024), "10 KiB");
  EXPECT_EQ(bytes_text(15 * 1024 + 512), "15.5 KiB");
  EXPECT_EQ(bytes_text(1234567), "1.177 MiB");
  EXPECT_EQ(bytes_text((10 << 20) - 400), "10 MiB");  // 9.9996, with four digits 10.00
  EXPECT_EQ(bytes_text(std::int64_t{256} << 20), "256 MiB");
  EXPECT_EQ(bytes_text(std::int64_t{100} << 30), "100 GiB");
  EXPECT_EQ(bytes_text(std::int64_t{5} << 60), "5 EiB");
}

TEST(ReportText, OfTimesAndCounts) {
  EXPECT_EQ(time_text(9.264e-6), "9.264 us");
  EXPECT_EQ(time_text(0), "0 us");
  EXPECT_EQ(time_text(2.9167e-9), "0.002917 us");
  EXPECT_EQ(time_text(123.456e-6), "123.5 us");
  EXPECT_EQ(time_text(1.5), "1500000 us");
  EXPECT_EQ(count_text(1, "step"), "1 step");
  EXPECT_EQ(count_text(0, "step"), "0 steps");
  EXPECT_EQ(count_text(2, "step"), "2 steps");
}

TEST(PlanReport, CountsWhatStepsMove) {
  const PlanReport r = detour();
  // Of 2 rows and 1, ranks gather 4 and 8 elements; they lacked 2 and 4.
  ASSERT_EQ(r.steps.size(), 2U);
  EXPECT_EQ(r.steps[0].received, 8 * 4);
  EXPECT_EQ(r.steps[0].received_by_all, 12 * 4);
  EXPECT_EQ(r.steps[1].received, 0);
  EXPECT_EQ(r.in_all.received, 8 * 4);
  EXPECT_EQ(r.in_all.missing, 4 * 4);
  EXPECT_EQ(r.ratio(), 2);
}

TEST(PlanReport, HasNoBoundWherePartialValuesAreReducedOrMade) {
  EXPECT_FALSE(nothing("[a=2]", "P(sum)", "R").has_bound());
  EXPECT_FALSE(nothing("[a=2]", "S(0)", "P(sum)").has_bound());
  EXPECT_TRUE(nothing("[a=2,b=2]", "P(sum),S(0)", "P(sum),R").has_bound());
  EXPECT_TRUE(nothing("[a=1,b=2]", "P(sum),S(0)", "R,R").has_bound());
  EXPECT_EQ(nothing("[a=2]", "S(0)", "P(sum)").ratio(), std::nullopt);
  EXPECT_EQ(nothing("[a=2]", "R", "S(0)").ratio(), std::nullopt);  // nothing must be received
  EXPECT_EQ(nothing("[a=2]", "S(0)", "R").ratio(), 0);
}

TEST(PlanReport, SaysWhatIsKnownOfTensorTopologyAndRanks) {
  PlanReport r = detour();
  EXPECT_EQ(r.tensor_text(), "[3, 4] of 4 B each");
  EXPECT_EQ(r.topology_text(), "the standard topology");
  r.dtype = "f32";
  r.topology = "node.json";
  EXPECT_EQ(r.tensor_text(), "f32[3, 4]");
  EXPECT_EQ(r.topology_text(), "node.json");
  EXPECT_TRUE(nothing("[a=4096]", "R", "R").counts_all_ranks());
  const PlanReport many = nothing("[a=4097]", "R", "R");
  EXPECT_FALSE(many.counts_all_ranks());
  EXPECT_NE(to_text(many).find("receives most of the first 4096 ranks\n"), std::string::npos);
}

TEST(PlanReport, AsText) {
  PlanReport r = detour();
  r.dtype = "f32";
  r.allowed_bytes = 100;
  r.plan.steps[0].chunks = 3;
  EXPECT_EQ(to_text(r),
            "mesh    [a=2], 2 ranks\n"
            "tensor  f32[3, 4], 48 B\n"
            "from    S(0)\n"
            "to      S(1)\n"
            "\n"
            "1  all_gather  a  S(0) -> R  32 B     9.264 us  in 3 parts\n"
            "2  slice       a  R -> S(1)   0 B  0.002000 us\n"
            "\n"
            "collectives  1\n"
            "received     32 B by the rank that receives most\n"
            "lower bound  16 B; the plan receives 2.000 times that\n"
            "time         9.266 us by the standard topology\n"
            "peak         80 B on a rank, of 100 B allowed\n");
}

TEST(PlanReport, AsTextWithoutStepsOrBound) {
  const std::string idle = to_text(nothing("[a=1]", "R", "R"));
  EXPECT_NE(idle.find("[a=1], 1 rank\n"), std::string::npos);
  EXPECT_NE(idle.find("\nno steps: nothing is to be done\n"), std::string::npos);
  EXPECT_NE(idle.find("lower bound  0 B: nothing must be received\n"), std::string::npos);
  EXPECT_NE(idle.find("peak         0 B on a rank\n"), std::string::npos);
  const std::string made = to_text(nothing("[a=2]", "S(0)", "P(sum)"));
  EXPECT_NE(made.find("none where partial values are reduced or made; 32 B were elsewhere\n"),
            std::string::npos);
}

TEST(PlanReport, AsJson) {
  PlanReport r = detour();
  const nlohmann::ordered_json json = to_json(r);
  EXPECT_EQ(json["mesh"], "[a=2]");
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["shape"], (std::vector<int>{3, 4}));
  EXPECT_TRUE(json["dtype"].is_null());
  EXPECT_TRUE(json["topology"].is_null());
  EXPECT_TRUE(json["allowed_bytes"].is_null());
  EXPECT_EQ(
      json["steps"].dump(),
      R"j([{"kind":"all_gather","axes":["a"],"communicates":true,"before":"S(0)","after":"R",)j"
      R"j("parts":1,"received_bytes":32,"received_bytes_by_all":48,"microseconds":9.264},)j"
      R"j({"kind":"slice","axes":["a"],"communicates":false,"before":"R","after":"S(1)",)j"
      R"j("parts":1,"received_bytes":0,"received_bytes_by_all":0,"microseconds":0.002}])j");
  EXPECT_EQ(json["in_all"].dump(),
            R"j({"collectives":1,"received_bytes":32,"received_bytes_by_all":48,)j"
            R"j("missing_bytes":16,"missing_bytes_by_all":24,"missing_is_bound":true,"ratio":2.0,)j"
            R"j("counts_all_ranks":true,"microseconds":9.266,"peak_bytes":80})j");
  r.allowed_bytes = 100;
  r.dtype = "f32";
  EXPECT_EQ(to_json(r)["allowed_bytes"], 100);
  EXPECT_EQ(to_json(r)["dtype"], "f32");
  EXPECT_TRUE(to_json(nothing("[a=2]", "R", "P(sum)"))["in_all"]["ratio"].is_null());
}

}  // namespace
}  // namespace intarsia
