#include "world/session/step_log.h"

#include <gtest/gtest.h>

namespace intarsia {
namespace {

TEST(StepLog, TheLastThatBeganIsThatOfTheThread) {
  EXPECT_EQ(StepLog::current(), nullptr);
  {
    StepLog outer;
    EXPECT_EQ(StepLog::current(), &outer);
    {
      StepLog inner;
      EXPECT_EQ(StepLog::current(), &inner);
      const StepLogPause pause;
      EXPECT_EQ(StepLog::current(), nullptr);
    }
    EXPECT_EQ(StepLog::current(), &outer);
  }
  EXPECT_EQ(StepLog::current(), nullptr);
}

TEST(StepLog, WaitsNameTheirCollective) {
  StepLog log;
  log.kernel({.name = "mm"});
  const std::size_t first = log.begin({.name = "all_reduce"});
  const std::size_t second = log.begin({.name = "all_gather"});
  log.wait(second);
  log.wait(first);
  const std::vector<StepEvent> events = log.take();
  ASSERT_EQ(events.size(), 5U);
  EXPECT_EQ(events[1].kind, StepEvent::Kind::collective);
  EXPECT_EQ(events[3].of, 2U);
  EXPECT_EQ(events[4].of, 1U);
}

}  // namespace
}  // namespace intarsia
