#include "checkpoint/session/thread_ranks.h"

#include <gtest/gtest.h>

#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

TEST(ThreadRanks, NoticeWhenOneIsGone) {
  const auto thrown = run_ranks(3, [](Ranks& ranks) {
    if (ranks.rank() == 1) throw std::runtime_error("left");
    ranks.agree("", [](std::span<const std::string>) { return std::string(); });
  });
  EXPECT_EQ(intarsia::testing::text_of(thrown[0]), "[checkpoint] one of 3 ranks is gone");
  EXPECT_EQ(intarsia::testing::text_of(thrown[1]), "left");
  EXPECT_EQ(intarsia::testing::text_of(thrown[2]), "[checkpoint] one of 3 ranks is gone");
}

}  // namespace
}  // namespace intarsia::checkpoint
