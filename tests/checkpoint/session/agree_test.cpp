#include "checkpoint/session/agree.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::text_of;

std::string before() { return "not done: "; }

TEST(Agree, RankZeroDecidesFromWhatAllSay) {
  const auto thrown = run_ranks(3, [](Ranks& ranks) {
    const Json sum = agree(
        ranks, [&] { return Json(ranks.rank()); },
        [](const std::vector<Json>& said) {
          return Json(said[0].get<int>() + said[1].get<int>() + said[2].get<int>());
        },
        before);
    EXPECT_EQ(sum, 3);
  });
  for (const auto& each : thrown) EXPECT_EQ(text_of(each), "");
}

TEST(Agree, AnErrorOfOneIsTheErrorOfAll) {
  const auto thrown = run_ranks(3, [](Ranks& ranks) {
    EXPECT_THROW(agree(
                     ranks,
                     [&]() -> Json {
                       if (ranks.rank() == 2) fail<UnsupportedError>("f", "no");
                       return {};
                     },
                     [](const std::vector<Json>&) { return Json(); }, before),
                 UnsupportedError);
    agree(
        ranks, [] { return Json(); },
        [](const std::vector<Json>&) -> Json { throw std::runtime_error("\xff bad"); }, before);
  });
  for (const auto& each : thrown) {
    EXPECT_EQ(text_of(each), "[checkpoint] not done: \xef\xbf\xbd bad");
  }
}

}  // namespace
}  // namespace intarsia::checkpoint
