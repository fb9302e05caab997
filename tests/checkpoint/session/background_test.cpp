#include "checkpoint/session/background.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

namespace intarsia::checkpoint {
namespace {

TEST(Background, WorksWhileOthersGoOn) {
  Background background;
  Signal go;
  std::atomic<int> done{0};
  for (int i = 1; i <= 3; ++i) {
    go.reset();
    background.start([&] {
      go.wait();
      ++done;
    });
    EXPECT_TRUE(background.running());
    EXPECT_EQ(done, i - 1);
    go.set();
    background.wait();
    EXPECT_EQ(done, i);
    EXPECT_FALSE(background.running());
  }
}

TEST(Background, AnErrorIsThrownOnce) {
  Background background;
  background.start([] { throw std::runtime_error("full disk"); });
  EXPECT_THROW(background.wait(), std::runtime_error);
  EXPECT_FALSE(background.failed());
  EXPECT_NO_THROW(background.wait());
}

TEST(Background, ItsEndIsWaitedFor) {
  std::atomic<bool> done{false};
  {
    Background background;
    background.start([&] {
      ::usleep(20'000);
      done = true;
    });
  }
  EXPECT_TRUE(done);
}

TEST(Background, OnlyTheThreadThatAsksIsLowered) {
  const int mine = ::getpriority(PRIO_PROCESS, 0);
  Background background;
  int theirs = mine;
  background.start([&] {
    lower_priority();
    theirs = ::getpriority(PRIO_PROCESS, 0);
  });
  background.wait();
  EXPECT_GT(theirs, mine);
  EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), mine);
}

TEST(Background, AForkWaitsForNothing) {
  Background background;
  Signal go;
  background.start([&] { go.wait(); });
  const pid_t child = ::fork();
  if (child == 0) {
    background.~Background();
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  go.set();
  background.wait();
}

}  // namespace
}  // namespace intarsia::checkpoint
