#include "world/guard/guarded_wait.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/waiting.h"
#include "world/guard/ranks.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;
using testing::Meet;
using testing::on_ranks;

/// A call that ends when the test says so.
struct Call : c10d::Work {
  void end(std::exception_ptr error = nullptr) { finish(std::move(error)); }
};

std::exception_ptr error(const char* text) {
  return std::make_exception_ptr(std::runtime_error(text));
}

TEST(GuardedWait, EndsWithTheCall) {
  on_ranks(2, [](int, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    const std::uint64_t number = group->enter({"a call"});
    meet();
    for (const milliseconds later : {milliseconds(0), milliseconds(50), milliseconds(400)}) {
      const auto call = c10::make_intrusive<Call>();
      std::thread ends([&] {
        std::this_thread::sleep_for(later);
        call->end();
      });
      wait_in_slices(*call, *group, number);
      EXPECT_TRUE(call->isCompleted());
      ends.join();
    }
    const auto call = c10::make_intrusive<Call>();
    call->end(error("broken"));
    expect_error<std::runtime_error>([&] { wait_in_slices(*call, *group, number); }, {"broken"});
    meet();
  });
}

TEST(GuardedWait, EndsAtItsLimit) {
  on_ranks(2, [](int, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    const std::uint64_t number = group->enter({"a call"});
    meet();
    for (const milliseconds limit : {milliseconds(20), milliseconds(700)}) {
      const auto call = c10::make_intrusive<Call>();
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_ANY_THROW(wait_in_slices(*call, *group, number, limit));
      EXPECT_GE(std::chrono::steady_clock::now() - begin, limit - milliseconds(1));
      EXPECT_FALSE(call->isCompleted());
    }
    meet();
  });
}

TEST(GuardedWait, LooksAtTheOthersAndNotesItsLine) {
  set_around_waits({nullptr, nullptr, [] { return std::string("train.py:7"); }});
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    if (rank == 0) {
      const std::uint64_t number = group->enter({"this"});
      const auto call = c10::make_intrusive<Call>();
      expect_error<GuardError>([&] { wait_in_slices(*call, *group, number); },
                               {"rank 0 makes this at train.py:7; rank 1 makes that at"});
    } else {
      std::this_thread::sleep_for(milliseconds(400));
      expect_error<GuardError>(
          [&] { (void)group->enter({"that"}); },
          {"rank 0 makes this at train.py:7; rank 1 makes that at train.py:7"});
    }
    meet();
  });
  set_around_waits({});
}

}  // namespace
}  // namespace intarsia
