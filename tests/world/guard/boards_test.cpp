// Ranks that count as those of several hosts. What is the same on one host is in guard_test.
#include "world/guard/boards.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "error_text.h"
#include "world/guard/ranks.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::all_of;
using testing::Meet;
using testing::on_hosts;

const std::vector<std::string> kTwoHosts{"a", "b", "a", "b"};
constexpr int kRanks = 4;

/// What a rank is told when it does something again and again, within ten seconds.
std::string told(const std::function<void()>& does) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < end) {
    try {
      does();
    } catch (const GuardError& error) {
      return error.what();
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  return "nothing";
}

void expect_in(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

TEST(Boards, RanksOfSeveralHostsThatAgreeAreLeftAlone) {
  on_hosts({"a", "b", "a", "c", "b"}, [](int rank, const auto& guard, const Meet& meet) {
    ASSERT_NE(guard, nullptr);
    const auto group = guard->join("[g=5]", all_of(5));
    group->meet(std::chrono::seconds(10));
    std::mt19937 random(static_cast<unsigned>(rank));
    // Long enough for the threads to compare, once slowly and once in a hurry.
    for (int i = 0; i < 5000; ++i) {
      const std::uint64_t number = group->enter({"call " + std::to_string(i % 7), i % 3});
      if (i < 200 && random() % 2 == 0) std::this_thread::sleep_for(milliseconds(random() % 10));
      if (random() % 100 == 0) group->look(number);
    }
    meet();
    for (int i = 0; i < 8; ++i) {
      group->look(4999);
      std::this_thread::sleep_for(milliseconds(200));
    }
    meet();
  });
}

TEST(Boards, ADifferenceIsNamedToWhoWaits) {
  on_hosts(kTwoHosts, [](int rank, const auto& guard, const Meet& meet) {
    const auto group = guard->join("[g=4]", all_of(kRanks));
    (void)group->enter({"first"});
    meet();
    // Nobody of its own host has made another.
    const bool is_wrong = rank == 1 || rank == 3;
    const std::uint64_t number = group->enter({is_wrong ? "wrong" : "right"});
    expect_in(told([&] { group->look(number); }),
              {"ranks disagree about call #1 of group [g=4]: ranks 0, 2 make right; ranks 1, 3 "
               "make wrong."});
    meet();
  });
}

TEST(Boards, ADifferenceIsNamedThoughNobodyWaits) {
  constexpr std::uint64_t kLast = 30;
  std::atomic<int> told_early = 0;
  on_hosts(kTwoHosts, [&](int rank, const auto& guard, const Meet& meet) {
    const auto group = guard->join("[g=4]", all_of(kRanks));
    std::uint64_t calls = 0;
    const std::string text = told([&] {
      const bool is_wrong = calls == 8 && rank % 2 == 1;
      // Who was told makes no more calls, so that the others come to wait.
      if (calls < kLast) calls = group->enter({is_wrong ? "wrong" : "right"}) + 1;
      if (calls == kLast) group->look(calls - 1);
      std::this_thread::sleep_for(milliseconds(100));
    });
    told_early += calls < kLast ? 1 : 0;
    expect_in(text,
              {"ranks disagree about call #8 of group [g=4]: ranks 0, 2 make right; ranks 1, 3 "
               "make wrong."});
    meet();
  });
  EXPECT_GE(told_early, 1);
}

TEST(Boards, WhoDoesNotComeIsNamedOnOtherHosts) {
  on_hosts({"a", "b"}, [](int rank, const auto& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    (void)group->enter({"first"});
    meet();
    if (rank == 0) {
      const std::uint64_t number = group->enter({"second"});
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      std::string text;
      while (text.find("its last call was #0") == std::string::npos &&
             std::chrono::steady_clock::now() < end) {
        group->look(number);  // nothing is wrong yet
        text = group->missing(number);
        std::this_thread::sleep_for(milliseconds(10));
      }
      expect_in(text, {"rank 1 never came to call #1 of group [g=2], second: its last call was #0 "
                       "of group [g=2], first, "});
    }
    meet();
    if (rank == 1) return guard->close("its world was closed");
    expect_in(told([&] { group->look(1); }),
              {"rank 1 has closed: its world was closed; rank 1 never came to call #1"});
  });
}

TEST(Boards, WhoDoesNotJoinIsNamed) {
  on_hosts({"a", "b"}, [](int rank, const auto& guard, const Meet& meet) {
    if (rank == 0) {
      const auto group = guard->join("[g=2]", {0, 1});
      testing::expect_error<GuardError>(
          [&] { group->meet(milliseconds(1500)); },
          {"waited 1500 ms; rank 1 never came to make group [g=2]", "it has made no call yet"});
    }
    meet();
  });
}

/// Programs of random calls on random hosts, of which one rank makes one otherwise.
TEST(Boards, FindsOneWrongCallOnRandomHosts) {
  std::mt19937 random(4);
  for (int program = 0; program < 6; ++program) {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < kRanks; ++rank) hosts.push_back(std::to_string(random() % 3));
    const int length = 1 + static_cast<int>(random() % 30);
    const int wrong = static_cast<int>(random() % static_cast<unsigned>(length));
    const auto culprit = static_cast<int>(random() % kRanks);
    on_hosts(hosts, [&](int rank, const auto& guard, const Meet& meet) {
      const auto group = guard->join("[g=4]", all_of(kRanks));
      std::string text;
      int calls = 0;
      text = told([&] {
        const bool here = rank == culprit && calls == wrong;
        if (calls <= length) (void)group->enter({here ? "wrong" : "right", 100 + calls});
        if (calls++ >= length) group->look(static_cast<std::uint64_t>(length));
      });
      expect_in(text,
                {"call #" + std::to_string(wrong) + " of", "rank " + std::to_string(culprit)});
      meet();
    });
  }
}

}  // namespace
}  // namespace intarsia
