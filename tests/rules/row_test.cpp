#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/rule.h"

namespace intarsia {
namespace {

using testing::expect_error;

const Placement kShard0 = Placement::shard(0);
const Placement kSum = Placement::partial();

TEST(Row, ReadsPlacementsOfOperandsAndResults) {
  const Row row = Row::parse("S(0),R -> S(1),P(max),SS(0,2)");
  EXPECT_EQ(row.in, (std::vector<Placement>{kShard0, Placement::replicate()}));
  EXPECT_EQ(row.out,
            (std::vector<Placement>{Placement::shard(1), Placement::partial(Reduction::max),
                                    Placement::strided_shard(0, 2)}));
  EXPECT_FALSE(row.linear);
  EXPECT_FALSE(row.any_kind);
  EXPECT_FALSE(row.contiguous);
  EXPECT_EQ(row.formula, std::nullopt);
  EXPECT_EQ(row.parts, 0);
}

TEST(Row, PAloneIsLinearAndPOfAKindIsNot) {
  const Row sums = Row::parse("P,R -> P");
  EXPECT_EQ(sums.in[0], kSum);
  EXPECT_EQ(sums.out[0], kSum);
  EXPECT_TRUE(sums.linear);
  EXPECT_FALSE(sums.any_kind);
  const Row any = Row::parse("P(*),R -> P(*)");
  EXPECT_EQ(any.in[0], kSum);
  EXPECT_TRUE(any.linear);
  EXPECT_TRUE(any.any_kind);
  const Row one = Row::parse("P(sum),R -> P(sum)");
  EXPECT_EQ(one.in[0], kSum);
  EXPECT_FALSE(one.linear);
}

TEST(Row, EndsInHowTheOpRuns) {
  EXPECT_EQ(Row::parse("S(0) -> R by formula").formula, 0);
  const Row runs = Row::parse("S(0) -> S(0) in runs");
  EXPECT_TRUE(runs.contiguous);
  EXPECT_EQ(runs.parts, 0);
  const Row parts = Row::parse("S(1) -> S(1) in 6 parts");
  EXPECT_TRUE(parts.contiguous);
  EXPECT_EQ(parts.parts, 6);
  const Row both = Row::parse("S(1) -> S(1) by formula in 2 parts");
  EXPECT_EQ(both.formula, 0);
  EXPECT_EQ(both.parts, 2);
}

TEST(Row, TextComesBackAsItWas) {
  for (const char* text : {"S(0),R -> S(0)", "P,R -> P", "P(*) -> P(*)", "R,R -> P(max),S(1)",
                           "SS(1,2) -> S(0)", "P(norm:2),R -> P(norm:2)", "S(0) -> R by formula",
                           "S(2),R,R -> S(2) in runs", "S(1),S(0) -> S(1) by formula in 6 parts"}) {
    EXPECT_EQ(Row::parse(text).to_string(), text);
  }
  EXPECT_EQ(Row::parse(" S(0),R->S(0)  in 3  parts").to_string(), "S(0),R -> S(0) in 3 parts");
}

TEST(Row, TextHasNoBytes) {
  Row row = Row::parse("S(0) -> S(0) by formula");
  row.formula = 0.25;
  row.sends = 0.5;
  EXPECT_EQ(row.to_string(), "S(0) -> S(0) by formula");
  EXPECT_NE(row, Row::parse(row.to_string()));
}

TEST(Row, SeveralAreReadInOrder) {
  const std::vector<Row> rows = parse_rows({"S(1) -> S(0)", "P -> P"});
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0], Row::parse("S(1) -> S(0)"));
  EXPECT_EQ(rows[1], Row::parse("P -> P"));
}

TEST(Row, RefusalsSayWhatWasExpected) {
  expect_error<ValueError>([] { Row::parse("S(0),R"); },
                           {"[Row::parse]", "\"S(0),R\"", "expected '->'", "the text ends"});
  expect_error<ValueError>([] { Row::parse("S(0) -> S(0) in 6"); }, {"'parts'"});
  expect_error<ValueError>([] { Row::parse("S(0) -> S(0) in"); }, {"an integer"});
  expect_error<ValueError>([] { Row::parse("R -> R, in"); }, {"Row::parse"});
  expect_error<ValueError>([] { Row::parse("R -> R -> R"); }, {"the end of the text", "-> R"});
  expect_error<ValueError>([] { Row::parse("P,P(max) -> P"); },
                           {"'P,P(max) -> P' mixes P", "sums and averages"});
}

}  // namespace
}  // namespace intarsia
