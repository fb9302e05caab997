#include "intarsia/placement.h"

#include <gtest/gtest.h>

#include <limits>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

TEST(Placement, TextParsesBack) {
  for (const char* text : {"R", "S(0)", "S(-1)", "SS(1,4)", "P(sum)", "P(avg)", "P(min)", "P(max)",
                           "P(prod)", "P(and)", "P(or)", "P(xor)", "P(norm:2)", "P(norm:0.5)"}) {
    EXPECT_EQ(Placement::parse(text).to_string(), text);
    EXPECT_EQ(Placement::parse(text).hash(), Placement::parse(text).hash());
  }
}

TEST(Placement, StridedWithOneBlockIsAShard) {
  EXPECT_EQ(Placement::strided_shard(2, 1), Placement::shard(2));
}

TEST(Placement, DiffersByEveryField) {
  EXPECT_NE(Placement::shard(0), Placement::shard(1));
  EXPECT_NE(Placement::strided_shard(0, 2), Placement::strided_shard(0, 3));
  EXPECT_NE(Placement::partial(), Placement::partial(Reduction::avg));
  EXPECT_NE(Placement::partial_norm(2), Placement::partial_norm(3));
}

TEST(Placement, RefusalsNameTheValues) {
  expect_error<ValueError>([] { (void)Placement::strided_shard(0, 0); }, {"SS(0,0)", "at least 1"});
  expect_error<ValueError>([] { (void)Placement::partial(Reduction::norm); }, {"partial_norm"});
  expect_error<ValueError>([] { (void)Placement::partial_norm(-1); }, {"order -1", "P(max)"});
  expect_error<ValueError>(
      [] { (void)Placement::partial_norm(std::numeric_limits<double>::infinity()); }, {"inf"});
  expect_error<ValueError>([] { (void)Placement::parse("Q"); }, {"\"Q\"", "R, S(dim)"});
  expect_error<ValueError>([] { (void)Placement::parse("P(mean)"); }, {"sum, avg"});
  expect_error<ValueError>([] { (void)Placement::parse("S(0)x"); }, {"the end", "\"x\""});
}

TEST(NormalizeDim, CountsFromTheEnd) {
  EXPECT_EQ(normalize_dim("t", -1, 3), 2);
  EXPECT_EQ(normalize_dim("t", 2, 3), 2);
  expect_error<ValueError>([] { normalize_dim("sum", 3, 3); }, {"[sum]", "dimension 3", "-3..2"});
  expect_error<ValueError>([] { normalize_dim("sum", 0, 0); }, {"scalar"});
}

}  // namespace
}  // namespace intarsia
