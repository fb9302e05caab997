#include "world/guard/times.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace intarsia {
namespace {

/// In memory of zeros, as pages are that were just mapped.
std::unique_ptr<Times> times() { return std::make_unique<Times>(); }

TEST(Times, KnowsThePhaseAndSinceWhen) {
  const auto t = times();
  EXPECT_EQ(t->phase(), "");
  t->note_phase(t->place_of("data"), 7);
  EXPECT_EQ(t->phase(), "data");
  EXPECT_EQ(t->since(), 7);
  t->note_phase(std::nullopt, 9);
  EXPECT_EQ(t->phase(), "");
  EXPECT_EQ(t->since(), 9);
}

TEST(Times, PhasesOfOneNameAreOne) {
  const auto t = times();
  EXPECT_EQ(t->place_of("data"), 0U);
  EXPECT_EQ(t->place_of("forward"), 1U);
  EXPECT_EQ(t->place_of("data"), 0U);
  const std::string lengthy(100, 'x');
  EXPECT_EQ(t->place_of(lengthy), 2U);
  EXPECT_EQ(t->place_of(lengthy), 2U) << "though it was shortened";
  EXPECT_EQ(t->phases(), (std::vector<std::string>{"data", "forward", lengthy.substr(0, 31)}));
}

TEST(Times, FurtherPhasesAreTheLast) {
  const auto t = times();
  for (std::size_t i = 0; i < 2 * Times::kPhases; ++i) {
    EXPECT_EQ(t->place_of("phase " + std::to_string(i)), std::min(i, Times::kPhases - 1));
  }
  EXPECT_EQ(t->phases().size(), Times::kPhases);
}

TEST(Times, KeepsTheLastSteps) {
  const auto t = times();
  EXPECT_FALSE(t->step(0));
  for (std::uint32_t n = 0; n < 100; ++n) t->note_step({.own = {n, 2 * n}, .waited = 3 * n});
  EXPECT_EQ(t->steps(), 100U);
  const auto last = t->step(99);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->own[0], 99U);
  EXPECT_EQ(last->own[1], 198U);
  EXPECT_EQ(last->own[2], 0U);
  EXPECT_EQ(last->waited, 297U);
  EXPECT_TRUE(t->step(100 - Times::kSteps));
  EXPECT_FALSE(t->step(99 - Times::kSteps)) << "too long ago";
  EXPECT_FALSE(t->step(100)) << "not yet";
}

TEST(Times, AStepThatIsBeingReplacedIsAbsent) {
  const auto t = times();
  std::atomic<bool> ends = false;
  std::thread writes([&] {
    for (std::uint32_t n = 0; !ends; ++n)
      t->note_step({.own = {n, n, n, n, n, n, n, n}, .waited = n});
  });
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t number = t->steps();
    if (number == 0) continue;
    if (const auto step = t->step(number - 1)) {
      for (const std::uint32_t own : step->own) ASSERT_EQ(own, step->waited);
      ASSERT_EQ(step->waited, number - 1);
    }
  }
  ends = true;
  writes.join();
}

}  // namespace
}  // namespace intarsia
