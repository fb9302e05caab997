#include "intarsia/pattern.h"

#include <gtest/gtest.h>

namespace intarsia {
namespace {

TEST(Pattern, AStarStandsForAnyLetters) {
  EXPECT_TRUE(matches("layers.0.wq.weight", "layers.*.weight"));
  EXPECT_TRUE(matches("weight", "*"));
  EXPECT_TRUE(matches("", "*"));
  EXPECT_TRUE(matches("a.b.c", "a*c"));
  EXPECT_FALSE(matches("layers.0.wq.weight", "layers.*.wq"));
  EXPECT_FALSE(matches("weights", "weight"));
  EXPECT_FALSE(matches("", "a"));
}

TEST(Pattern, SetsAndAnyLetterStandForOne) {
  EXPECT_TRUE(matches("layers.3.wq", "layers.[0-9].w[qkv]"));
  EXPECT_FALSE(matches("layers.12.wq", "layers.[0-9].w[qkv]"));
  EXPECT_FALSE(matches("layers.3.wo", "layers.?.w[qkv]"));
  EXPECT_TRUE(matches("layers.3.wo", "layers.?.w[!qkv]"));
  EXPECT_FALSE(matches("a", "a?"));
  EXPECT_TRUE(matches("a-", "a[x-]"));
  EXPECT_TRUE(matches("a]", "a[]]"));
}

TEST(Pattern, ABracketWithoutItsEndStandsForItself) {
  EXPECT_TRUE(matches("a[0", "a[0"));
  EXPECT_FALSE(matches("a0", "a[0"));
}

TEST(Pattern, AlternativesAreSeparated) {
  EXPECT_TRUE(matches("layers.0.wk", "*.wq|*.wk|*.wv"));
  EXPECT_TRUE(matches("layers.0.wv", "*.wq|*.wk|*.wv"));
  EXPECT_FALSE(matches("layers.0.wo", "*.wq|*.wk|*.wv"));
  EXPECT_TRUE(matches("", "a|"));
}

TEST(Pattern, OneOfSeveralIsEnough) {
  EXPECT_TRUE(matches_any("a.weight", {"*.bias", "a.*"}));
  EXPECT_FALSE(matches_any("a.weight", {"*.bias"}));
  EXPECT_FALSE(matches_any("a.weight", {}));
}

TEST(Pattern, PartsHaveAsManyDots) {
  EXPECT_TRUE(matches_parts("layers.0", "layers.*"));
  EXPECT_FALSE(matches_parts("layers.0.norm", "layers.*"));
  EXPECT_TRUE(matches_parts("layers.0.norm", "head|layers.*.norm"));
  EXPECT_FALSE(matches_parts("layers", "layers.*"));
}

}  // namespace
}  // namespace intarsia
