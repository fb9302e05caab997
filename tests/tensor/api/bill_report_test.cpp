#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "intarsia/communication.h"

namespace intarsia {
namespace {

const BillEntry kGather{.op = "aten::mm",
                        .tensor = "f32[4@a]",
                        .module = "head",
                        .axis = "a",
                        .transition = "S->R",
                        .count = 2,
                        .bytes = 2048,
                        .calls = 2};
const BillEntry kReduce{.op = "gradient",
                        .tensor = "f32[4] P(sum)@b",
                        .axis = "b",
                        .transition = "P->R",
                        .implicit = false,
                        .backward = true,
                        .fallback = true,
                        .count = 1,
                        .bytes = 20480,
                        .calls = 3};

TEST(BillReport, JsonHasAllOfAnEntryAndTheSums) {
  const auto read = nlohmann::json::parse(Bill{{kGather, kReduce}}.to_json());
  EXPECT_EQ(read["count"], 3);
  EXPECT_EQ(read["bytes"], 22528);
  EXPECT_EQ(read["calls"], 5);
  ASSERT_EQ(read["entries"].size(), 2U);
  const nlohmann::json wanted{{"op", "gradient"},
                              {"tensor", "f32[4] P(sum)@b"},
                              {"module", ""},
                              {"axis", "b"},
                              {"transition", "P->R"},
                              {"implicit", false},
                              {"backward", true},
                              {"fallback", true},
                              {"count", 1},
                              {"bytes", 20480},
                              {"calls", 3}};
  EXPECT_EQ(read["entries"][1], wanted);
  EXPECT_EQ(nlohmann::json::parse(Bill{}.to_json())["entries"].size(), 0U);
}

TEST(BillReport, ThePageHasSumsAndTheLargestFirst) {
  const std::string page = Bill{{kGather, kReduce}}.to_html("a & b");
  const auto at = [&](const char* text) { return page.find(text); };
  const auto has = [&](const char* text) { return at(text) != std::string::npos; };
  EXPECT_TRUE(has("<title>a &amp; b</title>"));
  EXPECT_TRUE(has("3 moves in 5 calls of the backend, 22 KiB handed over: 1 P-&gt;R, 2 S-&gt;R"));
  EXPECT_TRUE(has("By axis") && has("By transition") && has("By op") && has("By module"));
  EXPECT_TRUE(has("P-&gt;R, backward") && has("(outside of modules)") && has("no rule"));
  EXPECT_LT(page.find("<td>f32[4] P(sum)@b</td>"), page.find("<td>f32[4@a]</td>"));
  EXPECT_TRUE(Bill{}.to_html().find("0 moves in 0 calls") != std::string::npos);
}

}  // namespace
}  // namespace intarsia
