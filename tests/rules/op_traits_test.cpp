#include "rules/op_traits.h"

#include <gtest/gtest.h>

namespace intarsia {
namespace {

TEST(OpTraits, BaseNamesHaveNoNamespaceAndNoUnderscoreAtTheEnd) {
  EXPECT_EQ(base_of("aten::add"), "add");
  EXPECT_EQ(base_of("aten::add_"), "add");
  EXPECT_EQ(base_of("add_"), "add");
  EXPECT_EQ(base_of("aten::_foreach_add_"), "_foreach_add");
  EXPECT_EQ(base_of("mylib::_op"), "_op");
  EXPECT_EQ(base_of("_"), "_");
  EXPECT_EQ(base_of(""), "");
}

TEST(OpTraits, AreFoundFromTheFirstToTheLastName) {
  EXPECT_TRUE(has_trait("_batch_norm_with_update", kUpdatesStatistics));
  EXPECT_TRUE(has_trait("multinomial", kRandom));
  EXPECT_TRUE(has_trait("zeros_like", kLike));
  for (const char* unknown : {"", "_a", "ad", "adds", "mm", "zeros_like2", "zz"}) {
    EXPECT_FALSE(has_trait(unknown, kLike)) << unknown;
    EXPECT_FALSE(has_trait(unknown, kElementwiseList)) << unknown;
  }
}

TEST(OpTraits, OneOpMayHaveSeveral) {
  EXPECT_TRUE(has_trait("rand_like", kLike));
  EXPECT_TRUE(has_trait("rand_like", kRandom));
  EXPECT_FALSE(has_trait("rand_like", kRandomInPlace));
  EXPECT_TRUE(has_trait("bernoulli", kRandom));
  EXPECT_TRUE(has_trait("bernoulli", kRandomInPlace));
  EXPECT_FALSE(has_trait("uniform", kRandom));
  EXPECT_FALSE(has_trait("zeros_like", kRandom));
}

TEST(OpTraits, WhatInitialisesReadsBeforeOnlyIfItChanges) {
  for (const char* name : {"add", "sub", "mul", "div", "clamp"}) {
    EXPECT_TRUE(has_trait(name, kInitialises)) << name;
    EXPECT_TRUE(has_trait(name, kReadsBefore)) << name;
    EXPECT_FALSE(has_trait(name, kOverwrites)) << name;
  }
  for (const char* name : {"fill", "zero", "normal", "uniform", "exponential"}) {
    EXPECT_TRUE(has_trait(name, kInitialises)) << name;
    EXPECT_FALSE(has_trait(name, kReadsBefore)) << name;
  }
  EXPECT_TRUE(has_trait("copy", kOverwrites));
  EXPECT_FALSE(has_trait("copy", kInitialises));
}

TEST(OpTraits, OpsUnderOtherNamesAreKnown) {
  EXPECT_EQ(known_as("_index_put_impl"), "index_put");
  EXPECT_EQ(known_as("_unsafe_index_put"), "index_put");
  EXPECT_EQ(known_as("_unsafe_index"), "index");
  EXPECT_EQ(known_as("index_put"), "index_put");
  EXPECT_EQ(known_as("add"), "add");
}

}  // namespace
}  // namespace intarsia
