#include "intarsia/attention_mask.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// Which keys each query sees, as rows of letters.
std::string picture(const AttentionMask& mask, std::int64_t queries, std::int64_t keys,
                    std::int64_t sample = 0) {
  std::string out;
  for (std::int64_t q = 0; q < queries; ++q) {
    for (std::int64_t k = 0; k < keys; ++k) out += mask.sees(sample, q, k) ? 'x' : '.';
    out += ' ';
  }
  return out;
}

TEST(AttentionMask, DescribesWhatIsSeen) {
  EXPECT_EQ(picture(AttentionMask::all(), 2, 3), "xxx xxx ");
  EXPECT_EQ(picture(AttentionMask::causal(), 3, 3), "x.. xx. xxx ");
  EXPECT_EQ(picture(AttentionMask::window(1, 0), 4, 4), "x... xx.. .xx. ..xx ");
  EXPECT_EQ(picture(AttentionMask::window(0, 1), 3, 3), "xx. .xx ..x ");
}

TEST(AttentionMask, SinksAreSeenHoweverFarBackButNotFromBefore) {
  EXPECT_EQ(picture(AttentionMask::window(0).sinks(2), 4, 4), "x... xx.. xxx. xx.x ");
}

TEST(AttentionMask, APrefixIsSeenByAll) {
  EXPECT_EQ(picture(AttentionMask::causal().prefix(2), 4, 4), "xx.. xx.. xxx. xxxx ");
  EXPECT_EQ(picture(AttentionMask::causal().prefix(9), 2, 2), "xx xx ");
}

TEST(AttentionMask, DocumentsAreApart) {
  const auto mask = AttentionMask::causal().documents({0, 2});
  EXPECT_EQ(picture(mask, 4, 4), "x... xx.. ..x. ..xx ");
  EXPECT_EQ(picture(AttentionMask::window(0).sinks(1).documents({0, 2}), 4, 4),
            "x... xx.. ..x. ..xx ");
  const auto samples = AttentionMask::causal().documents_of_samples({{0}, {0, 1}});
  EXPECT_EQ(samples.samples(), 2);
  EXPECT_EQ(picture(samples, 2, 2, 0), "x. xx ");
  EXPECT_EQ(picture(samples, 2, 2, 1), "x. .x ");
}

TEST(AttentionMask, AnOffsetMovesTheQueries) {
  EXPECT_EQ(picture(AttentionMask::causal().offset(2), 2, 4), "xxx. xxxx ");
  EXPECT_EQ(picture(AttentionMask::causal().offset(-1), 2, 2), ".. x. ");
}

TEST(AttentionMask, RunsDoNotTouchAndStayInside) {
  std::vector<Range> runs;
  AttentionMask::window(1).sinks(2).keys_of(0, 2, 4, runs);
  EXPECT_EQ(runs, (std::vector<Range>{{0, 3}}));
  AttentionMask::window(1).sinks(2).keys_of(0, 6, 8, runs);
  EXPECT_EQ(runs, (std::vector<Range>{{0, 2}, {5, 7}}));
  AttentionMask::causal().keys_of(0, 9, 4, runs);
  EXPECT_EQ(runs, (std::vector<Range>{{0, 4}}));
  AttentionMask::window(1).keys_of(0, 9, 4, runs);
  EXPECT_TRUE(runs.empty());
}

TEST(AttentionMask, ListsWhatHasNoDescription) {
  const auto mask = AttentionMask::listed(4, {{{0, 1}, {3, 4}}, {}, {{0, 4}}});
  EXPECT_EQ(picture(mask, 3, 4), "x..x .... xxxx ");
  EXPECT_EQ(mask, AttentionMask::listed(4, {{{0, 1}, {3, 4}}, {}, {{0, 4}}}));
  EXPECT_NE(mask, AttentionMask::all());
  expect_error<ValueError>([] { AttentionMask::listed(4, {{{0, 1}, {1, 2}}}); }, {"do not touch"});
  expect_error<ValueError>([&] { mask.sinks(1); }, {"sinks", "listed"});
  expect_error<ValueError>([&] { mask.check("f", 1, 3, 5); }, {"[f]", "4 keys", "3 and 5"});
}

TEST(AttentionMask, WithinIsAWindowOfWhatIsSeen) {
  EXPECT_EQ(AttentionMask::causal().within(3, 2).to_string(), "window(3,0)");
  EXPECT_EQ(AttentionMask::window(2, 1).within(3, 0).to_string(), "window(2,0)");
  const auto mask = AttentionMask::listed(4, {{{0, 1}, {3, 4}}, {}, {{0, 4}}, {{1, 3}}});
  EXPECT_EQ(mask.within(1, 1), AttentionMask::listed(4, {{{0, 1}}, {}, {{1, 4}}, {{2, 3}}}));
}

TEST(AttentionMask, TextsOfListedMasksAreReadBack) {
  const std::vector<AttentionMask> masks{
      AttentionMask::listed(4, {{{0, 1}, {3, 4}}, {}, {{0, 4}}}), AttentionMask::listed(3, {}),
      AttentionMask::listed(3, {{}}),
      AttentionMask::listed_of_samples(2, {{{{0, 1}}, {}}, {{}, {{0, 2}}}})};
  for (const AttentionMask& mask : masks) {
    EXPECT_EQ(AttentionMask::parse(mask.to_string()), mask) << mask.to_string();
    EXPECT_EQ(AttentionMask::parse(mask.to_string()).hash(), mask.hash());
  }
  EXPECT_NE(masks[1].hash(), masks[2].hash());
  EXPECT_EQ(masks[0].to_string(), "listed(4:0:1,3:4;;0:4)");
}

AttentionMask listed_like(const AttentionMask& mask, std::int64_t queries, std::int64_t keys) {
  std::vector<std::vector<std::vector<Range>>> samples;
  for (std::int64_t s = 0; s < mask.samples(); ++s) {
    samples.emplace_back(static_cast<std::size_t>(queries));
    for (std::int64_t q = 0; q < queries; ++q) {
      mask.keys_of(s, q, keys, samples.back()[static_cast<std::size_t>(q)]);
    }
  }
  return AttentionMask::listed_of_samples(keys, samples);
}

TEST(AttentionMask, IsRecognisedFromAList) {
  for (const char* text :
       {"all", "causal", "window(3,0)", "window(2,1)", "window(1,0)+sinks(2)",
        "causal+documents(0,5,9)", "all+documents(0,4)", "causal+documents(0,5;0,7)"}) {
    const auto mask = AttentionMask::parse(text);
    EXPECT_EQ(listed_like(mask, 12, 12).recognised().to_string(), text);
  }
  EXPECT_EQ(listed_like(AttentionMask::causal().offset(4), 8, 12).recognised().to_string(),
            "causal+offset(4)");
  const auto other = AttentionMask::listed(3, {{{0, 1}}, {{0, 1}}, {{0, 2}}});
  EXPECT_EQ(other.recognised(), other);
}

TEST(AttentionMask, TextIsReadBack) {
  for (const char* text :
       {"all", "causal", "window(3,0)", "window(3,1)+prefix(2)+sinks(4)", "causal+offset(-3)",
        "causal+documents(0,5,9)", "all+documents(0,5;0;0,1,2)"}) {
    EXPECT_EQ(AttentionMask::parse(text).to_string(), text);
  }
  EXPECT_EQ(AttentionMask::parse("window(3)"), AttentionMask::window(3, 0));
  expect_error<ValueError>([] { AttentionMask::parse("casual"); }, {"casual", "causal"});
  expect_error<ValueError>([] { AttentionMask::parse("causal+document(0)"); },
                           {"documents(0,...)"});
}

TEST(AttentionMask, RefusesWhatDoesNotFit) {
  expect_error<ValueError>([] { AttentionMask::window(-1, 0); }, {"before", "-1"});
  expect_error<ValueError>([] { AttentionMask::causal().documents({1, 2}); }, {"begin at 0"});
  expect_error<ValueError>([] { AttentionMask::causal().documents({0, 2, 2}); }, {"ascend"});
  const auto mask = AttentionMask::causal().documents({0, 5});
  expect_error<ValueError>([&] { mask.check("f", 1, 5, 5); }, {"begins at 5", "5 keys"});
  expect_error<ValueError>([&] { mask.check("f", 1, 9, 8); }, {"among the keys"});
  const auto samples = AttentionMask::causal().documents_of_samples({{0}, {0, 1}});
  expect_error<ValueError>([&] { samples.check("f", 3, 5, 5); }, {"2 samples", "batch has 3"});
}

}  // namespace
}  // namespace intarsia
