#include "world/transport/forks.h"

#include <gtest/gtest.h>

#include <thread>

#include "error_text.h"
#include "intarsia/error.h"
#include "world/fork.h"

namespace intarsia {
namespace {

using testing::in_fork;

TEST(Forks, TheChildCountsAndTheParentDoesNot) {
  const std::uint32_t before = forks();
  EXPECT_EQ(in_fork([&] { return static_cast<int>(forks() - before); }), 1);
  EXPECT_EQ(in_fork([&] { return static_cast<int>(forks() - before); }), 1);
  EXPECT_EQ(forks(), before);
}

TEST(Forks, AForkOfAForkCountsBoth) {
  const std::uint32_t before = forks();
  EXPECT_EQ(in_fork([&] {
              const int of_child = in_fork([&] { return static_cast<int>(forks() - before); });
              return 10 * of_child + static_cast<int>(forks() - before);
            }),
            21);
}

TEST(Forks, ThreadsDoNotCount) {
  const std::uint32_t before = forks();
  std::uint32_t seen = before + 1;
  std::thread([&] { seen = forks(); }).join();
  EXPECT_EQ(seen, before);
}

TEST(Forks, TheRefusalSaysWhatToDo) {
  testing::expect_error<WorldError>(
      [] { fail_in_fork("group [g=2]"); },
      {"[World] group [g=2] belongs to the process that this one was forked from",
       "work with plain tensors in a fork", "by spawn, with a world of its own"});
}

}  // namespace
}  // namespace intarsia
