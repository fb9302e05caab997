#include "intarsia/schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "error_text.h"
#include "intarsia/error.h"
#include "pipeline/schedule/orders.h"
#include "pipeline/schedule/random_schedule.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::random_schedule;
using enum ActionKind;

Schedule made(const char* kind, int ranks, int microbatches, int chunks = 1) {
  return make_schedule(parse_schedule_kind(kind), {ranks, microbatches, chunks});
}

template <class T>
T most(const std::vector<T>& of) {
  return *std::max_element(of.begin(), of.end());
}

/// Two ranks, one microbatch; `rank0` and `rank1` in place of what 1f1b has.
Schedule two_ranks(const std::string& rank0, const std::string& rank1) {
  return Schedule::parse("schedule s\nmicrobatches 1\nstages on ranks 0 1\nrank 0: " + rank0 +
                         "\nrank 1: " + rank1 + "\n");
}

const std::string kFirst = "0F0 0SF0 0RB0@0 0B0";
const std::string kSecond = "1RF0@0 1F0 1B0 1SB0";

// ---- text ----

TEST(ScheduleText, ReadsWhatItWrites) {
  for (const ScheduleKind kind : schedule_kinds()) {
    for (const int gathered : {0, 1, 2}) {
      Schedule s = make_schedule(kind, {3, 7, 1});
      if (gathered > 0) s = with_gathers(s, gathered);
      EXPECT_EQ(Schedule::parse(s.to_string()), s) << s.to_string();
    }
  }
  for (unsigned seed = 0; seed < 50; ++seed) {
    const Schedule s = random_schedule(seed);
    EXPECT_EQ(Schedule::parse(s.to_string()), s) << s.to_string();
  }
}

TEST(ScheduleText, SaysWhatItCannotRead) {
  const std::string head = "schedule x\nmicrobatches 1\nstages on ranks 0\n";
  EXPECT_EQ(Schedule::parse("# a comment\n\n" + head + "rank 0: 0F0 0B0\n").ranks[0].size(), 2U);
  for (const char* wrong : {"0Q0", "0F", "0G1", "F0", "0F0@", "0F1x", "0F99999999999", "0F0 ,"}) {
    expect_error<ValueError>([&] { Schedule::parse(head + "rank 0: " + wrong); },
                             {"[Schedule::parse]"});
  }
  expect_error<ValueError>([&] { Schedule::parse(head + "rank 1: 0F0"); },
                           {"ranks follow each other from 0 on"});
  expect_error<ValueError>([&] { Schedule::parse("schedule x\n"); },
                           {"the line 'microbatches ...' is missing"});
  expect_error<ValueError>([&] { Schedule::parse("plan x\n"); }, {"begins with 'schedule '"});
  expect_error<FileError>([&] { Schedule::load("/nonsense"); }, {"cannot read /nonsense"});
}

// ---- generators ----

struct Formula {
  const char* kind;
  /// With F = I = W = 1 for each stage, what a rank waits in all, and how much it holds.
  double bubble;
  int live;
};

TEST(Schedules, WaitAsLongAsIsPublished) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {2 * p, 4 * p}) {
      const double b = 3.0 * (p - 1);
      for (const Formula& f :
           {Formula{"gpipe", b, m}, Formula{"1f1b", b, p}, Formula{"zb-h1", b / 3, p},
            Formula{"zb-v", b / 3, 2 * p}, Formula{"dualpipe-v", 2.0 * (p - 1), 2 * p + 1}}) {
        const Schedule s = made(f.kind, p, m);
        const ScheduleTimes times = simulate(s);
        EXPECT_EQ(times.total - 3.0 * m * s.stages() / p, f.bubble) << f.kind << p << ' ' << m;
        const ScheduleFacts facts = check(s);
        EXPECT_EQ(most(facts.live), f.live) << f.kind << p << ' ' << m;
      }
      for (const int chunks : {2, 3}) {
        const auto waits = [&](const char* kind) {
          return simulate(made(kind, p, m, chunks)).total - 3.0 * m * chunks;
        };
        EXPECT_EQ(waits("interleaved"), b) << "of stages that are a part as long";
        EXPECT_EQ(waits("looped-bfs"), b);
      }
      const Schedule half = made("v-half", p, m);
      EXPECT_LE(simulate(half).total - 6.0 * m, b)
          << "half of 1F1B's, whose stages are twice as long";
      EXPECT_LE(most(check(half).live), p + 2);
    }
  }
}

TEST(Schedules, AreRefusedWithTheReason) {
  expect_error<ValueError>([] { made("zb-v", 4, 3); },
                           {"zb-v needs at least as many microbatches as ranks, and 3 are fewer"});
  expect_error<ValueError>([] { made("1f1b", 4, 8, 2); }, {"1f1b has 1 stage on each rank, not 2"});
  expect_error<ValueError>([] { made("v-half", 4, 8, 3); },
                           {"v-half has 2 stages on each rank, not 3"});
  expect_error<ValueError>([] { made("gpipe", 0, 8); }, {"at least 1, not 0, 8 and 1"});
  expect_error<ValueError>([] { parse_schedule_kind("2f2b"); },
                           {"there is no schedule '2f2b'; it is one of gpipe, 1f1b"});
}

TEST(Schedules, OfOneRankSendNothing) {
  for (const ScheduleKind kind : schedule_kinds()) {
    const Schedule s = make_schedule(kind, {1, 3, 1});
    EXPECT_EQ(check(s).transfers, 0U) << s.to_string();
    EXPECT_EQ(simulate(s).bubble, 0) << s.to_string();
  }
}

// ---- checks ----

TEST(ScheduleCheck, PassesAnyOrderInWhichAllHasWhatItNeeds) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Schedule s = random_schedule(seed);
    EXPECT_NO_THROW(check(s)) << s.to_string();
    EXPECT_NO_THROW(simulate(s)) << s.to_string();
    for (const int most : {1, 2}) {
      const ScheduleFacts facts = check(with_gathers(s, most));
      for (const int gathered : facts.gathered) EXPECT_LE(gathered, most) << s.to_string();
    }
  }
}

TEST(ScheduleCheck, NamesTheFault) {
  EXPECT_NO_THROW(check(two_ranks(kFirst, kSecond)));
  const auto refused = [](const std::string& rank0, const std::string& rank1,
                          const std::string& why) {
    expect_error<ValueError>([&] { check(two_ranks(rank0, rank1)); }, {"[check] schedule s", why});
  };
  refused("0F0 0SF0 0RB0@0", kSecond, "rank 0: 0I0 is missing");
  refused("0SF0 0F0 0RB0@0 0B0", kSecond, "rank 0: 0SF0 needs 0F0 before it");
  refused("0F0 0F0 0SF0 0RB0@0 0B0", kSecond, "rank 0: 0F0 is there twice");
  refused("0F0 0SF0 0B0", kSecond, "rank 0: 0B0 needs 0RB0 before it");
  refused("0F0 0SF0 0RB0@0 0B0 0I0 0W0", kSecond, "rank 0: 0I0: the gradient is there");
  refused("0F0 0SF0 0RB0@0 0W0 0I0", kSecond, "rank 0: 0W0 needs 0I0 before it");
  refused(kFirst, "1RF0 1F0 1B0 1SB0", "rank 1: 1RF0 names no buffer");
  refused(kFirst, "1F0 1B0 1SB0", "rank 1: 1F0 needs 1RF0 before it");
  refused(kFirst, "1RF0@0 1F0 1B0", "rank 1: 1SB0 is missing");
  refused("1F0 0F0 0SF0 0RB0@0 0B0", kSecond, "rank 0: 1F0: stage 1 is on rank 1");
  refused("2F0 0F0 0SF0 0RB0@0 0B0", kSecond, "rank 0: 2F0: there is no stage 2");
  refused("0F1 0F0 0SF0 0RB0@0 0B0", kSecond, "rank 0: 0F1: there are microbatches 0 to 0");
  refused("0RF0@0 0F0 0SF0 0RB0@0 0B0", kSecond, "rank 0: 0RF0@0: no other rank sends it");
  refused(kFirst, "1RF0@0 1F0 1B0 1SB0 1SF0", "rank 1: 1SF0: no other rank needs it");
  refused("0F0 0SF0 0RB0@0 0R 0B0", kSecond, "rank 0: 0R comes before the last backward");
  refused("0G 0F0 0X 0SF0 0RB0@0 0B0", kSecond, "the parameters of stage 0 are not gathered");
  refused("0G 0G 0F0 0SF0 0RB0@0 0B0", kSecond, "0G: it is gathered already");
  refused("0X 0F0 0SF0 0RB0@0 0B0", kSecond, "0X: it is not gathered");
  refused("0F0& 0SF0 0RB0@0 0B0", kSecond, "runs with the action behind it, and both must compute");
  refused("0F0 0SF0 0RB0@0 0B0&", kSecond, "runs with the action behind it, and both must compute");
}

TEST(ScheduleCheck, PairsMustNotNeedEachOther) {
  const auto one_rank = [](const std::string& actions) {
    return Schedule::parse("schedule s\nmicrobatches 2\nstages on ranks 0 0\nrank 0: " + actions);
  };
  check(one_rank("0F0 1F0& 0F1 1F1& 1B0 0B0& 1B1 0B1"));
  expect_error<ValueError>([&] { check(one_rank("0F0& 1F0 0F1 1F1 1B0 0B0 1B1 0B1")); },
                           {"1F0 needs 0F0&, and cannot run at the same time"});
  expect_error<ValueError>([&] { check(one_rank("0F0 1F0& 1B0 0F1 1F1 0B0 1B1 0B1")); },
                           {"1F0& and 1B0 depend on each other"});
  expect_error<ValueError>([&] { check(one_rank("0F0 1F0 0F1 1F1 1B0& 0B0 1B1 0B1")); },
                           {"0B0 needs 1B0&"});
  expect_error<ValueError>([&] { check(one_rank("0F0& 0F1& 1F0 1F1 1B0 0B0 1B1 0B1")); },
                           {"no more than two actions run at a time"});
}

TEST(ScheduleCheck, BuffersStayUntilTheLastBackward) {
  Schedule s = Schedule::parse(
      "schedule s\nmicrobatches 2\nstages on ranks 0 1\n"
      "rank 0: 0F0 0SF0 0F1 0SF1 0RB0@0 0B0 0RB1@0 0B1\n"
      "rank 1: 1RF0@0 1F0 1RF1@0 1F1 1B0 1SB0 1B1 1SB1\n");
  expect_error<ValueError>([&] { check(s); },
                           {"rank 1: 1RF1@0 overwrites buffer 0, which microbatch 0 of stage 1 "
                            "needs until its last backward"});
  s.ranks[1][2].buffer = 1;
  EXPECT_EQ(check(s).buffers, (std::vector<int>{1, 2}));
}

TEST(ScheduleCheck, NamesTheCircleOfADeadlock) {
  // Each rank receives for its second stage what the other has not sent yet.
  const Schedule s = Schedule::parse(
      "schedule s\nmicrobatches 2\nstages on ranks 0 1\n"
      "rank 0: 0F0 0SF0 0RB0@0 0B0 0F1 0SF1 0RB1@0 0B1\n"
      "rank 1: 1RF0@0 1F0 1RF1@1 1F1 1B0 1SB0 1B1 1SB1\n");
  expect_error<ValueError>(
      [&] { check(s); },
      {"the ranks wait for each other for ever: rank 0 waits at 0B0 for what rank 1 sends",
       "rank 1 waits at 1F1 for what rank 0 sends"});
  const Schedule other_order = Schedule::parse(
      "schedule s\nmicrobatches 2\nstages on ranks 0 1\n"
      "rank 0: 0F0 0SF0 0F1 0SF1 0RB0@0 0B0 0RB1@0 0B1\n"
      "rank 1: 1RF1@1 1RF0@0 1F0 1F1 1B0 1SB0 1B1 1SB1\n");
  expect_error<ValueError>([&] { check(other_order); },
                           {"what rank 0 sends to rank 1 is received in another order: transfer 0 "
                            "is 0SF0 there, and 1RF1@1 here"});
}

TEST(ScheduleCheck, KnowsWhetherOneChannelWouldDo) {
  EXPECT_EQ(check(two_ranks(kFirst, kSecond)).shared_channel_deadlock, "");
  EXPECT_NE(check(made("1f1b", 3, 4)).shared_channel_deadlock.find("but their channel is at"),
            std::string::npos);
}

// ---- times ----

TEST(ScheduleTimes_, CountTransfersAsTheyAre) {
  const Schedule s = made("gpipe", 2, 2);
  ScheduleCosts costs;
  EXPECT_EQ(simulate(s, costs).total, 9);
  costs.transfer = 0.5;
  EXPECT_EQ(simulate(s, costs).total, 10) << "there and back, the others behind what computes";
  costs.transfer = 3;
  EXPECT_EQ(simulate(s, costs).total, 18) << "transfers of one direction follow each other";
  costs.transfers_overlap = false;
  costs.transfer = 0.5;
  EXPECT_EQ(simulate(s, costs).total, 11);
}

TEST(ScheduleTimes_, OfTwoActionsAtATimeAreParts) {
  ScheduleCosts costs;
  const Schedule s = made("dualpipe-v", 2, 8);
  const double apart = simulate(s, costs).total;
  costs.together = 0.5;
  const ScheduleTimes times = simulate(s, costs);
  EXPECT_LT(times.total, apart);
  for (const double computes : times.computes) EXPECT_LE(computes, times.total);
}

TEST(ScheduleTimes_, MemoryIsGivenBackInParts) {
  const Schedule s = Schedule::parse(
      "schedule s\nmicrobatches 2\nstages on ranks 0\nrank 0: 0F0 0I0 0F1 0W0 0I1 0W1\n");
  ScheduleCosts costs;
  costs.stages[0].activation = 10;
  costs.stages[0].for_weights = 4;
  EXPECT_EQ(simulate(s, costs).peak[0], 14);
  expect_error<ValueError>(
      [&] {
        simulate(s, {.stages = {{}, {}}});
      },
      {"costs of 2 stages were given for 1"});
}

TEST(ScheduleTimes_, ARankThatCannotGoOnIsNamed) {
  expect_error<ValueError>([] { simulate(two_ranks("0F0 0B0", kSecond)); },
                           {"rank 0 cannot go on at 0B0; check(schedule) says why"});
}

TEST(ScheduleTimes_, AreDrawn) {
  const ScheduleTimes times = simulate(made("1f1b", 2, 2));
  EXPECT_EQ(times_text(times),
            "rank 0  F0 F1       B0       B1\n"
            "rank 1     F0 B0    F1 B1\n");
  const std::string svg = times_svg(times, "a & b");
  EXPECT_NE(svg.find("a &amp; b"), std::string::npos);
  EXPECT_NE(times_trace(times).find("\"name\":\"1B1\""), std::string::npos);
  EXPECT_EQ(times_text(ScheduleTimes{}), "");
  EXPECT_NE(times_svg(ScheduleTimes{}, "nothing").find("</svg>"), std::string::npos);
}

// ---- search ----

TEST(ScheduleSearch, KeepsToTheMemory) {
  SearchOptions options{.ranks = 4, .microbatches = 8};
  double before = 0;
  for (const double limit : {8.0, 4.0, 3.0, 2.5, 1.0}) {
    options.most_bytes = limit;
    const auto found = search_schedule(options);
    ASSERT_TRUE(found) << limit;
    check(found->schedule);
    EXPECT_LE(most(found->times.peak), limit * 1.000001);
    EXPECT_GE(found->times.total, before) << "less memory takes longer";
    before = found->times.total;
    const auto named = best_named_schedule(options);
    EXPECT_TRUE(!named || found->times.total <= named->times.total);
  }
  options.most_bytes = 0.1;
  EXPECT_FALSE(search_schedule(options));
  expect_error<ValueError>([] { search_schedule({.ranks = 0, .microbatches = 1}); },
                           {"at least 1, not 0 and 1"});
}

}  // namespace
}  // namespace intarsia
