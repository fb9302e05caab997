#include "checkpoint/session/ranks.h"

#include <gtest/gtest.h>

namespace intarsia::checkpoint {
namespace {

TEST(Ranks, OneRankAgreesWithItself) {
  OneRank ranks;
  EXPECT_EQ(ranks.agree("a", [](std::span<const std::string> said) { return said[0] + "b"; }),
            "ab");
}

}  // namespace
}  // namespace intarsia::checkpoint
