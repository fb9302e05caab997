#include "base/text.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

TEST(Text, ConcatJoinsStringsNumbersAndCharacters) {
  EXPECT_EQ(concat("a", 1, '-', std::string("b"), 2.5), "a1-b2.5");
}

TEST(Text, JoinSeparatesValues) {
  EXPECT_EQ(join(std::vector<int>{1, 2, 3}, " x "), "1 x 2 x 3");
  EXPECT_EQ(join(std::vector<int>{}), "");
}

TEST(Text, NamesAreIdentifiers) {
  EXPECT_TRUE(is_name("dp_1"));
  EXPECT_FALSE(is_name("1dp"));
  EXPECT_FALSE(is_name(""));
  EXPECT_FALSE(is_name("d p"));
}

TEST(Cursor, ReadsTokensAndSkipsSpaces) {
  Cursor c("t", " ab = -12 , 0.5");
  EXPECT_EQ(c.name(), "ab");
  c.expect("=");
  EXPECT_EQ(c.integer(), -12);
  EXPECT_TRUE(c.accept(","));
  EXPECT_EQ(c.number(), 0.5);
  c.end();
}

TEST(Cursor, FailureShowsTextAndPosition) {
  expect_error<ValueError>(
      [] {
        Cursor c("thing", "ab;");
        c.name();
        c.expect("=");
      },
      {"[thing]", "\"ab;\"", "expected '='", "position 2", "\";\""});
}

}  // namespace
}  // namespace intarsia
