#include "world/guard/guard.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "error_text.h"
#include "world/guard/ranks.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::all_of;
using testing::expect_error;
using testing::Meet;
using testing::on_ranks;

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

TEST(Guard, WhatARankDidIsStillKnownWhenItWasToldAndLeft) {
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    auto group = guard->join("[g=2]", {0, 1});
    if (rank == 0) group->enter({"broadcast", 8});
    meet();
    if (rank == 1) {
      EXPECT_THROW(group->enter({"all_gather", 8}), GuardError);
      group.reset();
    }
    meet();
    if (rank == 0) {
      expect_error<GuardError>([&] { group->compare(0); },
                               {"rank 0 makes broadcast", "rank 1 makes all_gather"});
    }
    meet();
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

TEST(Guard, AfterAFaultNoCallIsMade) {
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    constexpr const char* kFault = "ranks disagree about call #0";
    // Rank 0 has made its call, and rank 1 has not: the next one of rank 1 would meet it.
    if (rank == 0) (void)group->enter({"a"});
    meet();
    if (rank == 1) {
      expect_error<GuardError>([&] { (void)group->enter({"b"}); }, {kFault});
      for (int i = 0; i < 3; ++i)
        expect_error<GuardError>([&] { (void)group->enter({"c"}); }, {kFault});
    }
    meet();
    if (rank == 0) {
      expect_all({found_by(*group, 0)}, {kFault});
      expect_error<GuardError>([&] { (void)group->enter({"c"}); }, {kFault});
    }
    meet();
  });
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

TEST(Guard, TheLineOfAWaitingRankIsInTheErrorsOfOthers) {
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    if (rank == 0) group->note_line(group->enter({"this"}), "train.py:88 in step");
    meet();
    if (rank == 1) {
      expect_error<GuardError>([&] { (void)group->enter({"that"}); },
                               {"rank 0 makes this at train.py:88 in step; rank 1 makes that"});
    }
    meet();
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

TEST(Guard, WhoEndsAtItsTimeoutTellsWhoWasMissing) {
  on_ranks(3, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto first = rank == 2 ? nullptr : guard->join("[a=2]", {0, 1});
    const auto second = rank == 1 ? nullptr : guard->join("[b=2]", {0, 2});
    if (rank == 1) (void)first->enter({"a call"});
    if (rank == 0) {
      second->explain(second->enter({"another call"}));  // nobody knows why
      guard->close("it ended");
    }
    meet();
    if (rank == 1) {
      expect_error<GuardError>([&] { first->look(0); },
                               {"rank 2 never came to call #0 of group [b=2], another call"});
    }
    meet();
  });
}

TEST(Guard, WhoWaitsForARankIsNamedWhereItWaitsItself) {
  on_ranks(3, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto all = guard->join("[g=3]", {0, 1, 2});
    if (rank != 1) (void)all->enter({"a call"});
    meet();
    if (rank == 1) {
      const auto pair = guard->join("[b=2]", {1, 2});
      expect_error<GuardError>([&] { pair->meet(std::chrono::milliseconds(50)); },
                               {"rank 2 never came to make group [b=2]",
                                "; ranks 0, 2 wait for rank 1 in call #0 of group [g=3], a call"});
    }
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
  on_ranks(
      2, [](int, const std::shared_ptr<Guard>& guard, const Meet&) { EXPECT_EQ(guard, nullptr); });
  ::unsetenv("INTARSIA_GUARD");
}

// ---- values that must be equal ------------------------------------------------------------------

/// What each of three ranks is told when it is asked about the values that `values` gives, in a
/// group of all, and then reads a number; later ranks are asked later.
std::vector<std::string> told_of_values(
    const std::function<std::vector<std::pair<std::string, std::uint64_t>>(int rank)>& values) {
  constexpr int kRanks = 3;
  std::vector<std::string> out(kRanks);
  on_ranks(kRanks, [&](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    for (int turn = 0; turn < kRanks; ++turn) {
      meet();
      if (turn != rank) continue;
      for (const auto& [what, hash] : values(rank)) {
        guard->check_value("[g=3]", all_of(kRanks), what, hash, "make it alike");
      }
    }
    meet();
    try {
      guard->check_trouble("[g=3]", {});
    } catch (const GuardError& error) {
      out[static_cast<std::size_t>(rank)] = error.what();
    }
    meet();
  });
  return out;
}

TEST(GuardValues, OneThatDiffersIsNamedByWhoComesLater) {
  const auto texts = told_of_values([](int rank) {
    return std::vector<std::pair<std::string, std::uint64_t>>{{"a", 1},
                                                              {"the batch", rank == 1 ? 8 : 7}};
  });
  EXPECT_EQ(texts[0], "") << "nobody came before";
  // Who speaks first is quoted by the other.
  expect_all({texts[1], texts[2]},
             {"the batch differs between rank ", " of group [g=3]; make it alike"});
  EXPECT_TRUE(texts[1].find("rank 1 and rank 0") != std::string::npos ||
              texts[1].find("rank 2 and rank 1") != std::string::npos)
      << texts[1];
}

TEST(GuardValues, WhatARankLeavesOutIsNotCompared) {
  const auto texts = told_of_values([](int rank) {
    std::vector<std::pair<std::string, std::uint64_t>> values{{"a", 1}, {"b", 2}, {"b", 3}};
    if (rank == 1) values.erase(values.begin());
    if (rank == 2) values.resize(1);
    return values;
  });
  EXPECT_EQ(texts, std::vector<std::string>(3));
}

TEST(GuardValues, TheSameAfterAnotherNumberOfCallsIsAnother) {
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    const auto check = [&](std::uint64_t hash) {
      guard->check_value("[g=2]", {0, 1}, "the batch", hash, "");
      guard->check_trouble("[g=2]", {});
    };
    for (std::uint64_t step = 0; step < 100; ++step) {
      // Rank 1 looks at the batch only from time to time, and now and then twice.
      for (std::uint64_t i = 0; rank == 0 || i < step % 3; ++i) {
        check(10 * step + i);
        if (i == 2) break;
      }
      (void)group->enter({"step"});
    }
    meet();
    if (rank == 0) check(1);
    meet();
    if (rank == 1) expect_error<GuardError>([&] { check(2); }, {"the batch differs"});
    meet();
  });
}

TEST(GuardValues, WhatDiffersIsToldBeforeTheNextCallIsMade) {
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=2]", {0, 1});
    guard->check_value("[g=2]", {0, 1}, "the batch", rank == 0 ? 1 : 2, "make it alike");
    meet();
    try {
      const std::uint64_t number = group->enter({"a call"});
      expect_all({found_by(*group, number)}, {"the batch differs between"});
    } catch (const GuardError& error) {
      expect_all({error.what()}, {"the batch differs between"});
    }
    meet();
  });
}

TEST(GuardValues, WhatDiffersIsToldInAnyGroupOfTheSameRanks) {
  on_ranks(3, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto gathers = rank == 2 ? nullptr : guard->join("[g=2] for gathers", {0, 1});
    const auto others = rank == 0 ? nullptr : guard->join("[h=2]", {1, 2});
    for (const int turn : {0, 1}) {
      if (turn == rank) guard->check_value("[g=2]", {0, 1}, "a weight", turn, "seed it");
      meet();
    }
    if (others) (void)others->enter({"of others"});
    if (rank == 0) (void)gathers->enter({"all_gather"});
    meet();
    if (rank == 1) {
      expect_error<GuardError>([&] { (void)gathers->enter({"all_gather"}); },
                               {"a weight differs between rank 1 and rank 0"});
    }
    meet();
  });
}

TEST(GuardValues, ADoubtWaitsForRanksThatAreSlow) {
  on_ranks(3, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=3]", {0, 1, 2});
    const auto check = [&] {
      guard->check_value("[g=3]", {0, 1, 2}, "the batch", rank == 1 ? 2 : 1, "make it alike");
    };
    if (rank == 0) check();
    meet();
    if (rank == 1) check();
    meet();
    std::string text;
    try {
      if (rank == 2) {
        std::this_thread::sleep_for(milliseconds(300));
        check();
      }
      text = found_by(*group, group->enter({"a call"}));
    } catch (const GuardError& error) {
      text = error.what();
    }
    expect_all({text}, {"the batch differs between rank"});
    meet();
  });
}

TEST(GuardValues, ARankMaySkipWhatOthersDoBeforeTheNextCall) {
  on_ranks(3, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto group = guard->join("[g=3]", {0, 1, 2});
    std::mt19937 random(static_cast<unsigned>(rank));
    for (std::uint64_t step = 0; step < 200; ++step) {
      // Blocks that look alike, each with a value of its own; each rank skips some.
      for (std::uint64_t block = 0; block < 5; ++block) {
        if (rank > 0 && random() % 3 == 0) continue;
        guard->check_value("[g=3]", {0, 1, 2}, "the scale of a block", 100 * step + block, "");
      }
      const std::uint64_t number = group->enter({"a call"});
      meet();  // it ends when all have come
      group->look(number);
    }
    meet();
  });
}

TEST(GuardValues, AGroupThatWasLeftIsNoClock) {
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    const auto check = [&](std::uint64_t hash) {
      guard->check_value("[g=2]", {0, 1}, "the batch", hash, "");
      guard->check_trouble("[g=2]", {});
    };
    auto group = guard->join("[g=2]", {0, 1});
    (void)group->enter({"a call"});
    meet();
    if (rank == 0) group.reset();  // rank 1 does not know yet
    check(static_cast<std::uint64_t>(rank));
    group.reset();
    check(static_cast<std::uint64_t>(rank));
    meet();
    group = guard->join("[g=2]", {0, 1}, 1);
    if (rank == 0) check(5);
    meet();
    if (rank == 1) expect_error<GuardError>([&] { check(6); }, {"the batch differs"});
    meet();
  });
}

TEST(GuardValues, WhatOneRankWasToldTheOthersCanAsk) {
  on_ranks(2, [](int rank, const std::shared_ptr<Guard>& guard, const Meet& meet) {
    guard->check_trouble("g", {0, 1});
    meet();
    const auto check = [&] {
      guard->check_value("g", {0, 1}, "it", rank == 0 ? 1 : 2, "no");
      guard->check_trouble("g", {});
    };
    if (rank == 0) check();
    meet();
    if (rank == 1) expect_error<GuardError>(check, {"it differs"});
    meet();
    expect_error<GuardError>([&] { guard->check_trouble("g", {0, 1}); }, {"it differs"});
    meet();
  });
}

/// Programs of random values, of which one rank has one otherwise, and all skip some.
TEST(GuardValues, FindsOneWrongValueInRandomPrograms) {
  std::mt19937 random(2);
  for (int program = 0; program < 40; ++program) {
    const auto length = 1 + random() % 30;
    const auto wrong = random() % length;
    const int culprit = static_cast<int>(random() % 3);
    const unsigned seed = random();
    const auto texts = told_of_values([&](int rank) {
      std::vector<std::pair<std::string, std::uint64_t>> values;
      std::mt19937 skips(seed + static_cast<unsigned>(rank));
      for (unsigned i = 0; i < length; ++i) {
        const bool is_wrong = rank == culprit && i == wrong;
        if (i != wrong && skips() % 4 == 0) continue;
        values.emplace_back("value " + std::to_string(i), is_wrong ? 1 : 1000 + i);
      }
      return values;
    });
    const std::string name = "value " + std::to_string(wrong) + " differs";
    for (int rank = 0; rank < 3; ++rank) {
      const bool told = rank == culprit ? culprit > 0 : culprit < rank;
      EXPECT_EQ(texts[static_cast<std::size_t>(rank)].find(name) != std::string::npos, told)
          << rank << " of " << culprit << ": " << texts[static_cast<std::size_t>(rank)];
    }
  }
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
