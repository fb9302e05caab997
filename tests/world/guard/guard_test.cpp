#include "world/guard/guard.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "error_text.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;

/// Where all ranks of a test wait for each other.
using Meet = std::function<void()>;

/// Runs `of_rank` on one thread for each rank of a world, with its guard.
void on_ranks(
    int size,
    const std::function<void(int rank, const std::shared_ptr<Guard>&, const Meet&)>& of_rank) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier<> barrier(size);
  const Meet meet = [&barrier] { barrier.arrive_and_wait(); };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { of_rank(rank, Guard::make(store, rank, size, milliseconds(20000)), meet); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::int64_t> all_of(int size) {
  std::vector<std::int64_t> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

/// Looks until the guard finds something, for at most ten seconds.
std::string found_by(const GuardedGroup& group, std::uint64_t number) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < end) {
    try {
      group.look(number);
    } catch (const GuardError& error) {
      return error.what();
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return "nothing";
}

/// What each of four ranks is told when each makes the calls that `calls` gives.
std::vector<std::string> told(const std::function<std::vector<GuardedCall>(int rank)>& calls) {
  constexpr int kRanks = 4;
  std::vector<std::string> out(kRanks);
  on_ranks(kRanks, [&](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=4]", all_of(kRanks));
    std::uint64_t number = 0;
    try {
      for (const GuardedCall& call : calls(rank)) number = group->enter(call);
      out[static_cast<std::size_t>(rank)] = found_by(*group, number);
    } catch (const GuardError& error) {
      out[static_cast<std::size_t>(rank)] = error.what();
    }
    meet();
  });
  return out;
}

void expect_all(const std::vector<std::string>& texts, std::initializer_list<std::string> parts) {
  for (const std::string& text : texts) {
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
}

TEST(Guard, RanksThatAgreeAreLeftAlone) {
  on_ranks(3, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    ASSERT_NE(guard, nullptr);
    const auto group = guard->join("[g=3]", {0, 1, 2});
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int i = 0; i < 3000; ++i) {
      const std::string what = "call " + std::to_string(i % 7);
      const std::uint64_t number = group->enter({what, i % 3});
      EXPECT_EQ(number, static_cast<std::uint64_t>(i));
      if (random() % 4 == 0) group->compare(number);
      if (random() % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    group->look(2999);
    meet();  // nobody ends before
  });
}

TEST(Guard, AnotherCallOnOneRankIsNamedToAll) {
  expect_all(told([](int rank) {
               return std::vector<GuardedCall>{
                   {"all_reduce (sum) of Float [8] P(sum)", 32},
                   rank == 2 ? GuardedCall{"all_gather of Float [8] S(0)", 8, "blocks.2"}
                             : GuardedCall{"all_reduce (max) of Float [8] P(max)", 32}};
             }),
             {"ranks disagree about call #1 of group [g=4]: ranks 0, 1, 3 make all_reduce (max) of "
              "Float [8] P(max), 32 bytes; rank 2 makes all_gather of Float [8] S(0), 8 bytes in "
              "blocks.2. All ranks"});
}

TEST(Guard, OtherSizesAreNamed) {
  expect_all(told([](int rank) {
               return std::vector<GuardedCall>{{"all_reduce", rank == 0 ? 64 : 32}};
             }),
             {"ranks 1, 2, 3 make all_reduce, 32 bytes; rank 0 makes all_reduce, 64 bytes"});
}

TEST(Guard, TheFirstDifferenceIsNamedThoughItWasNotWaitedFor) {
  const auto texts = told([](int rank) {
    std::vector<GuardedCall> calls{{"same"}};
    if (rank == 3) calls.push_back({"one more"});
    for (int i = 0; i < 5; ++i) calls.push_back({"next"});
    return calls;
  });
  expect_all(texts, {"call #1 of group [g=4]", "rank 3 makes one more"});
}

TEST(Guard, ARankThatEndsIsNamedWithItsLastCall) {
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    (void)group->enter({"first"});
    meet();
    if (rank == 1) return guard->close("its world was closed");
    const std::uint64_t number = group->enter({"second"});
    const std::string text = found_by(*group, number);
    expect_all({text}, {"rank 1 has closed: its world was closed", "never came to call #1",
                        "second", "its last call was #0 of group [g=2], first, "});
  });
}

TEST(Guard, WhatARankSuffersInAnotherGroupIsToldToThoseWhoWaitForIt) {
  on_ranks(3, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto pair = rank == 2 ? nullptr : guard->join("pair", {0, 1});
    const auto all = guard->join("all", {0, 1, 2});
    std::string text;
    try {
      if (pair) text = found_by(*pair, pair->enter({rank == 0 ? "this" : "that"}));
      if (!pair) text = found_by(*all, all->enter({"barrier"}));
    } catch (const GuardError& error) {
      text = error.what();
    }
    expect_all({text}, {"about call #0 of group pair", "rank 0 makes this; rank 1 makes that"});
    meet();
  });
}

TEST(Guard, GroupsOfOtherRanksMayDiffer) {
  on_ranks(4, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const std::int64_t first = rank / 2 * 2;
    const auto group = guard->join("pair at " + std::to_string(first), {first, first + 1});
    for (int i = 0; i < 100 * (1 + rank / 2); ++i) {
      group->compare(group->enter({rank < 2 ? "experts" : "others"}));
    }
    meet();
  });
}

TEST(Guard, AGroupMayEndAndBeginAgain) {
  on_ranks(2, [](int, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    for (int round = 0; round < 50; ++round) {
      const std::string name = "group #" + std::to_string(round);  // may not be that of one before
      const auto group = guard->join(name, {0, 1});
      EXPECT_EQ(group->enter({name}), 0U);
      meet();
      group->look(0);
      meet();
    }
  });
}

TEST(Guard, TooManyGroupsAreNotCompared) {
  on_ranks(2, [](int, const std::shared_ptr<Guard>& guard, const Meet&) {
    std::vector<std::shared_ptr<GuardedGroup>> groups;
    for (std::size_t i = 0; i < Board::kGroups; ++i) {
      groups.push_back(guard->join(std::to_string(i), {0, 1}));
      EXPECT_NE(groups.back(), nullptr);
    }
    EXPECT_EQ(guard->join("one more", {0, 1}), nullptr);
    groups.clear();
    EXPECT_NE(guard->join("one more", {0, 1}), nullptr);
  });
}

TEST(Guard, IsNotMadeWhereItIsNotWanted) {
  EXPECT_EQ(Guard::make(c10::make_intrusive<c10d::HashStore>(), 0, 1, milliseconds(1)), nullptr);
  ::setenv("INTARSIA_GUARD", "off", 1);
  on_ranks(2, [](int, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    EXPECT_EQ(guard, nullptr);
  });
  ::unsetenv("INTARSIA_GUARD");
}

/// Programs of random calls, of which one rank makes one otherwise, or leaves one out.
TEST(Guard, FindsOneWrongCallInRandomPrograms) {
  std::mt19937 random(1);
  for (int program = 0; program < 40; ++program) {
    const int length = 1 + static_cast<int>(random() % 30);
    const int wrong = static_cast<int>(random() % static_cast<unsigned>(length));
    const auto culprit = static_cast<int>(random() % 4);
    const bool leaves_out = random() % 2 == 0;
    const auto texts = told([&](int rank) {
      std::vector<GuardedCall> calls;
      for (int i = 0; i < length; ++i) {
        const bool here = rank == culprit && i == wrong;
        if (here && leaves_out) continue;
        calls.push_back({here ? "wrong" : "right", 100 + i});
      }
      calls.push_back({"the last", 1});
      return calls;
    });
    expect_all(texts,
               {"call #" + std::to_string(wrong) + " of", "rank " + std::to_string(culprit)});
  }
}

}  // namespace
}  // namespace intarsia
