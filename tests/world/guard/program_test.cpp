#include "world/guard/program.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>

#include "intarsia/waiting.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;

/// A board that the program of this process is noted on.
class Noted {
 public:
  Noted() { Program::instance().add({{board_.get()}, board_.get()}); }
  ~Noted() { Program::instance().remove(*board_); }
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;
  const Board* operator->() const { return board_.get(); }

 private:
  std::unique_ptr<Board> board_ = std::make_unique<Board>();
};

/// What a step took in a phase, in milliseconds.
double own(const Times& times, std::uint64_t step, std::string_view phase) {
  const std::vector<std::string> names = times.phases();
  const auto place = std::find(names.begin(), names.end(), phase) - names.begin();
  return times.step(step).value().own.at(static_cast<std::size_t>(place)) * 1e-3;
}

void sleep(int ms) { std::this_thread::sleep_for(milliseconds(ms)); }

/// A step whose phases take these times; it ends where the next one begins.
void step(int data, int forward, int backward, int optimizer) {
  {
    const Phase phase("data");
    sleep(data);
  }
  sleep(forward);
  {
    const Phase phase("backward");
    sleep(backward);
  }
  {
    const Phase phase("optimizer");
    sleep(optimizer);
  }
}

TEST(Program, APhaseIsOnTheBoardUntilTheNext) {
  const Noted board;
  {
    const Phase phase("data");
    EXPECT_EQ(board->times().phase(), "data");
  }
  EXPECT_EQ(board->times().phase(), "forward");
  {
    const Phase phase("backward");
    {
      const Phase inner("saving");
      EXPECT_EQ(board->times().phase(), "saving");
    }
    EXPECT_EQ(board->times().phase(), "backward");
  }
  EXPECT_EQ(board->times().phase(), "optimizer");
  { const Phase phase("optimizer"); }
  EXPECT_EQ(board->times().phase(), "before backward");
  { const Phase phase("saving"); }
  EXPECT_EQ(board->times().phase(), "before backward") << "what was before goes on";
  end_phase();  // none is open: nothing happens
  EXPECT_EQ(board->times().phase(), "before backward");
}

TEST(Program, ABoardThatComesLaterKnowsThePhase) {
  const Phase phase("data");
  const Noted board;
  EXPECT_EQ(board->times().phase(), "data");
}

TEST(Program, TimesOfAStep) {
  step(0, 0, 0, 0);
  const Noted board;
  step(20, 40, 60, 80);
  const Phase next("data");
  const std::uint64_t last = board->times().steps() - 1;
  EXPECT_GE(own(board->times(), last, "data"), 20);
  EXPECT_LT(own(board->times(), last, "data"), 40);
  EXPECT_GE(own(board->times(), last, "forward"), 40);
  EXPECT_GE(own(board->times(), last, "backward"), 60);
  EXPECT_GE(own(board->times(), last, "optimizer"), 80);
}

TEST(Program, SeveralOptimizersAreOneStep) {
  const Noted board;
  step(0, 0, 0, 0);
  { const Phase again("optimizer"); }
  const std::uint64_t before = board->times().steps();
  step(0, 0, 0, 0);
  { const Phase again("optimizer"); }
  EXPECT_EQ(board->times().steps(), before + 1);
}

TEST(Program, WaitingIsNotItsOwnTime) {
  step(0, 0, 0, 0);
  const Noted board;
  {
    const Phase phase("data");
    const Waiting waiting;
    sleep(50);
  }
  { const Phase phase("optimizer"); }
  const Phase next("data");
  const std::uint64_t last = board->times().steps() - 1;
  EXPECT_LT(own(board->times(), last, "data"), 40);
  EXPECT_GE(board->times().step(last)->waited, 50000U);
}

TEST(Program, OtherThreadsWaitForThemselves) {
  step(0, 0, 0, 0);
  const Noted board;
  {
    const Phase phase("data");
    std::thread([] {
      const Waiting waiting;
      sleep(50);
    }).join();
  }
  { const Phase phase("optimizer"); }
  const Phase next("data");
  const std::uint64_t last = board->times().steps() - 1;
  EXPECT_GE(own(board->times(), last, "data"), 50);
}

TEST(Program, ACallThatEndsWhileNothingElseHappensWasWaitedFor) {
  step(0, 0, 0, 0);
  const Noted board;
  {
    const Phase phase("backward");
    const std::uint64_t first = Program::instance().begin_call();
    const std::int64_t begin = nanoseconds_now();
    const std::uint64_t second = Program::instance().begin_call();
    sleep(50);
    Program::instance().ended(first, begin);  // the program went on to the second
    Program::instance().ended(second, begin);
  }
  { const Phase phase("optimizer"); }
  const Phase next("data");
  const auto last = board->times().step(board->times().steps() - 1);
  EXPECT_GE(last->waited, 50000U);
  EXPECT_LT(last->waited, 100000U) << "once";
}

TEST(Program, ErrorsAndStaysAreOnTheBoard) {
  const Noted board;
  EXPECT_EQ(board->error(), "");
  note_error("IndexError: 9");
  EXPECT_EQ(board->error(), "IndexError: 9");
  note_stay("loader.py:17");
  EXPECT_EQ(board->stay(), "loader.py:17");
  { const Phase phase("data"); }
  EXPECT_LT(quiet_seconds(), 10);
  sleep(20);
  EXPECT_GE(quiet_seconds(), 0.02);
}

TEST(Program, WithoutABoardNothingIsNoted) {
  note_error("nobody reads it");
  note_stay("nowhere");
  EXPECT_EQ(quiet_seconds(), 0);
  EXPECT_EQ(step_times().size(), 1U);
}

TEST(Program, AForkDoesNotWriteOnTheBoardOfItsParent) {
  const Noted board;
  const pid_t child = ::fork();
  if (child == 0) {
    note_error("of the child");
    const Phase phase("of the child");
    ::_exit(board->error().empty() && board->times().phase() != "of the child" ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Program, AnErrorThatNobodyCatchesIsNoted) {
  void* memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const board = static_cast<Board*>(memory);
  const pid_t child = ::fork();
  if (child == 0) {
    Program::instance().add({{board}, board});
    std::thread([] { throw std::runtime_error("index 9 is out of range"); }).join();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "as before";
  EXPECT_EQ(board->error(), "index 9 is out of range");
  ::munmap(memory, sizeof(Board));
}

}  // namespace
}  // namespace intarsia
