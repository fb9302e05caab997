#include "intarsia/phase.h"

#include <gtest/gtest.h>

#include <random>

namespace intarsia {
namespace {

RankTimes times(std::int64_t rank, double data, double forward, double waited) {
  return {
      .rank = rank, .steps = 10, .own = {{"data", data}, {"forward", forward}}, .waited = waited};
}

TEST(Phase, TimesOfARank) {
  const RankTimes of_rank = times(3, 0.5, 1, 0.25);
  EXPECT_EQ(of_rank.of("forward"), 1);
  EXPECT_EQ(of_rank.of("saving"), 0);
  EXPECT_EQ(of_rank.total(), 1.75);
}

TEST(Phase, TheStragglerIsWhoLosesMost) {
  const auto found = find_straggler(
      std::vector{times(0, 0.1, 1, 0.4), times(1, 0.1, 1.05, 0.35), times(2, 0.5, 1, 0)});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->phase, "data");
  EXPECT_DOUBLE_EQ(found->others, 0.1);
  EXPECT_NEAR(found->share, 0.4 / 1.5, 1e-9);
  EXPECT_EQ(found->to_string(),
            "rank 2 is slow in data: 0.5 s of a step where others take 0.1 s, 27 % of the step");
}

TEST(Phase, EqualRanksHaveNoStraggler) {
  EXPECT_FALSE(find_straggler(std::vector{times(0, 1, 1, 0), times(1, 1.05, 1, 0)}));
  EXPECT_TRUE(find_straggler(std::vector{times(0, 1, 1, 0), times(1, 1.05, 1, 0)}, 0.01));
  EXPECT_FALSE(find_straggler(std::vector{times(0, 1, 1, 0)})) << "alone";
  EXPECT_FALSE(find_straggler({}));
  EXPECT_FALSE(find_straggler(std::vector<RankTimes>(4))) << "no steps yet";
}

TEST(Phase, APhaseThatOthersDoNotHaveCounts) {
  auto saving = times(1, 1, 1, 0);
  saving.own.push_back({"saving", 2});
  const auto found = find_straggler(std::vector{times(0, 1, 1, 2), saving, times(2, 1, 1, 2)});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->phase, "saving");
}

TEST(Phase, WhoWasSlowedIsFoundInAnyWorld) {
  std::mt19937 random(1);
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution(low, high)(random);
  };
  for (int i = 0; i < 500; ++i) {
    const auto ranks = static_cast<std::int64_t>(2 + random() % 15);
    const double usual[] = {between(0, 1), between(0.1, 1)};
    std::vector<RankTimes> all;
    for (std::int64_t r = 0; r < ranks; ++r) {
      all.push_back(times(r, usual[0] * between(0.98, 1.02), usual[1] * between(0.98, 1.02), 0));
    }
    const auto slow = random() % static_cast<std::uint64_t>(ranks);
    const std::size_t phase = random() % 2;
    all[slow].own[phase].seconds += 0.2 * (usual[0] + usual[1]);
    const auto found = find_straggler(all);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, static_cast<std::int64_t>(slow));
    EXPECT_EQ(found->phase, all[slow].own[phase].phase);
  }
}

TEST(Phase, PrometheusText) {
  auto odd = times(1, 2, 3, 0.25);
  odd.own[1].phase = "a \"b\" \\ c\n";
  EXPECT_EQ(to_prometheus(std::vector{odd}),
            "# HELP intarsia_own_seconds Time of a step in a phase, without waiting for other "
            "ranks.\n"
            "# TYPE intarsia_own_seconds gauge\n"
            "intarsia_own_seconds{rank=\"1\",phase=\"data\"} 2.000000\n"
            "intarsia_own_seconds{rank=\"1\",phase=\"a \\\"b\\\" \\\\ c \"} 3.000000\n"
            "# HELP intarsia_waited_seconds Time of a step that a rank waits for others.\n"
            "# TYPE intarsia_waited_seconds gauge\n"
            "intarsia_waited_seconds{rank=\"1\"} 0.250000\n");
}

}  // namespace
}  // namespace intarsia
