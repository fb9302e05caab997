#include "world/guard/report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "error_text.h"
#include "intarsia/phase.h"
#include "intarsia/waiting.h"
#include "intarsia/watch.h"
#include "world/guard/ranks.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::Meet;
using testing::on_ranks;
constexpr std::int64_t kSecond = 1'000'000'000;

TEST(Report, Ranks) {
  EXPECT_EQ(ranks_text({2}), "rank 2");
  EXPECT_EQ(ranks_text({0, 1, 3}), "ranks 0, 1, 3");
}

TEST(Report, TheLastCallOfARank) {
  const auto board = std::make_unique<Board>();
  EXPECT_EQ(last_call_of(*board), "it has made no call yet");
  Board::Group* group = board->add(7, "[dp=4]");
  board->note(*group, 0, 1, "all_gather of Float");
  const std::int64_t now = group->since() + 12 * kSecond;
  EXPECT_EQ(last_call_of(*board, now),
            "its last call was #0 of group [dp=4], all_gather of Float, 12 s ago");
  board->note_line(*group, 0, "train.py:88");
  board->times().note_phase(board->times().place_of("data"), group->since() + 2 * kSecond);
  EXPECT_EQ(
      last_call_of(*board, now),
      "its last call was #0 of group [dp=4], all_gather of Float at train.py:88, 12 s ago; it "
      "is in data since 10 s");
  board->note_stay("loader.py:17", now);
  EXPECT_TRUE(last_call_of(*board, now).ends_with("; it is in data since 10 s, at loader.py:17"));
  board->times().note_phase(std::nullopt, now + kSecond);
  EXPECT_TRUE(last_call_of(*board, now).ends_with("12 s ago")) << "it has gone on since";
}

/// Ranks that made different numbers of calls, and what is said of them.
void check_job(const std::function<std::string()>& described) {
  on_ranks(3, [&](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=3]", {0, 1, 2});
    group->enter({"a call"});
    if (rank != 1) group->enter({"another call"});
    meet();
    if (rank == 0) {
      note_error("of this process");  // which is that of all ranks here
      const std::string text = described();
      EXPECT_NE(text.find("rank 1 of 3 (process " + std::to_string(::getpid()) +
                          "): its last call was #0 of group [g=3], a call, 0 s ago; "),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("its last error was: of this process"), std::string::npos) << text;
      EXPECT_NE(text.find("group [g=3]: ranks 0, 2 have made 2 calls, rank 1 has made 1 call\n"),
                std::string::npos)
          << text;
    }
    meet();
  });
}

TEST(Report, AJobThatRuns) {
  check_job([] { return describe_job(::getpid()); });
  check_job([] { return describe_job(std::nullopt); });
}

TEST(Report, AJobThatHasEnded) {
  const std::string folder = ::testing::TempDir() + "boards of " + std::to_string(::getpid());
  ::setenv("INTARSIA_GUARD_DIR", folder.c_str(), 1);
  check_job([&] { return describe_job(folder); });
  ::unsetenv("INTARSIA_GUARD_DIR");
  EXPECT_NE(describe_job(folder).find("rank 2 of 3"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(Report, AFolderThatCannotBeWrittenToIsNotUsed) {
  ::setenv("INTARSIA_GUARD_DIR", "/proc/none", 1);
  check_job([] { return describe_job(::getpid()); });
  ::unsetenv("INTARSIA_GUARD_DIR");
}

TEST(Report, NothingToRead) {
  expect_error<ValueError>([] { describe_job(1); }, {"describe_job", "process 1 has no guard"});
  expect_error<ValueError>([] { describe_job(std::string("nowhere")); },
                           {"no boards", "in nowhere", "INTARSIA_GUARD_DIR"});
}

}  // namespace
}  // namespace intarsia
