#include "checkpoint/session/save_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::Crash;
using intarsia::testing::expect_error;
using intarsia::testing::HeldState;
using intarsia::testing::load_difference;
using intarsia::testing::MemoryFiles;
using intarsia::testing::RandomStates;
using intarsia::testing::save;
using intarsia::testing::saved;
using intarsia::testing::text_of;

/// Sharded, replicated and larger than a chunk, blocks, an empty piece, a scalar.
std::vector<SavedTensor> small_state() {
  return {saved("w", "f32[7@a, 6]", "[a=2,b=2]"),   saved("r", "f64[4, 5]", "[a=2,b=2]"),
          saved("big", "c128[90000]", "[a=2,b=2]"), saved("blocks", "i16[9@b:2]", "[a=2,b=2]"),
          saved("few", "i64[1@a]", "[a=2,b=2]"),    saved("s", "c128[]", "[a=2,b=2]")};
}

void save_state(MemoryFiles& files, Ranks& ranks, std::span<const SavedTensor> tensors,
                Pieces pieces, const Json& values, const SaveOptions& options = {}) {
  const StepState state{.tensors = tensors, .pieces = pieces, .values = values};
  save_step(
      files, ranks, "/root", 1, [&] { return state; }, options);
}

void expect_all(const std::vector<std::exception_ptr>& thrown, const std::string& text) {
  for (const auto& each : thrown) {
    EXPECT_NE(text_of(each).find(text), std::string::npos) << text_of(each) << "\nlacks " << text;
  }
}

std::vector<std::exception_ptr> save_all(MemoryFiles& files, std::span<const SavedTensor> tensors,
                                         std::int64_t world, std::int64_t step,
                                         std::uint64_t version, const SaveOptions& options = {},
                                         std::optional<std::uint64_t> hf_file_bytes = {}) {
  return run_ranks(world, [&](Ranks& ranks) {
    save(files, ranks, tensors, step, version, options, hf_file_bytes);
  });
}

TEST(SaveStep, WhatIsSavedIsLoaded) {
  MemoryFiles files;
  const auto tensors = small_state();
  expect_all(save_all(files, tensors, 4, 3, 1), "");
  EXPECT_EQ(files.list("/root"), std::vector<std::string>{"step-00000003"});
  EXPECT_EQ(load_difference(files, "/root/step-00000003", tensors, 4, 1), "");
}

TEST(SaveStep, IsLoadedInAnyOtherLayout) {
  RandomStates random(3);
  for (int i = 0; i < 150; ++i) {
    MemoryFiles files;
    const std::int64_t world = random.pick(1, 6);
    const std::int64_t other = random.pick(1, 6);
    std::vector<SavedTensor> tensors;
    std::vector<SavedTensor> elsewhere;
    for (int t = 0; t < 6; ++t) {
      tensors.push_back(random.tensor("t" + std::to_string(t), world));
      if (random.pick(0, 9) == 0)
        tensors.back().type = {DType::c128, {random.pick(1, 3), 90000}, {}};
      tensors.back() = random.elsewhere(tensors.back(), world);
      elsewhere.push_back(random.elsewhere(tensors.back(), other));
    }
    std::optional<std::uint64_t> hf_file_bytes;
    if (random.pick(0, 1) == 0) hf_file_bytes = random.pick(1, 1000);
    for (const auto& each : save_all(files, tensors, world, 0, 5, {}, hf_file_bytes)) {
      ASSERT_EQ(text_of(each), "");
    }
    for (const bool verify : {true, false}) {
      ASSERT_EQ(load_difference(files, "/root/step-00000000", elsewhere, other, 5,
                                {.verify = verify, .first = random.pick(0, 6)}),
                "")
          << "case " << i;
    }
  }
}

TEST(SaveStep, AStepIsReplacedOnlyWhenAsked) {
  MemoryFiles files;
  const auto tensors = small_state();
  save_all(files, tensors, 4, 3, 1);
  expect_all(save_all(files, tensors, 4, 3, 2),
             "[checkpoint] step 3 was not saved in /root: /root/step-00000003 is there already; "
             "pass `replace` to replace it");
  EXPECT_EQ(load_difference(files, "/root/step-00000003", tensors, 4, 1), "");
  expect_all(save_all(files, tensors, 4, 3, 2, {.replace = true}), "");
  EXPECT_EQ(load_difference(files, "/root/step-00000003", tensors, 4, 2), "");
  EXPECT_EQ(files.list("/root").size(), 1U);
}

TEST(SaveStep, RanksThatSaveSomethingElseAreNamed) {
  const auto tensors = small_state();
  const auto with = [&](auto change) {
    MemoryFiles files;
    auto thrown = run_ranks(4, [&](Ranks& ranks) {
      auto mine = tensors;
      SaveOptions options;
      std::int64_t step = 3;
      std::uint64_t version = 1;
      if (ranks.rank() == 2) change(mine, options, step, version);
      save(files, ranks, mine, step, version, options);
    });
    EXPECT_TRUE(files.list("/root").empty());
    return thrown;
  };
  expect_all(with([](auto&, auto&, auto& step, auto&) { step = 4; }),
             "rank 2 saves another step than rank 0");
  expect_all(with([](auto&, auto&, auto&, auto& version) { version = 2; }),
             "rank 2 saves other values than rank 0");
  expect_all(with([](auto&, auto& options, auto&, auto&) { options.replace = true; }),
             "rank 2 saves with another `replace` than rank 0");
  expect_all(with([](auto& mine, auto&, auto&, auto&) { mine[1].name = "q"; }),
             "rank 2 saves tensors of other names, sizes, types or layouts than rank 0");
  expect_all(with([](auto& mine, auto&, auto&, auto&) { mine[1].name = "w"; }),
             "rank 2: two tensors are called 'w'");
}

TEST(SaveStep, ReplicasThatDifferAreNamed) {
  MemoryFiles files;
  const auto tensors = small_state();
  const auto run = [&](bool check) {
    return run_ranks(4, [&](Ranks& ranks) {
      HeldState held(tensors, ranks.rank(), 1);
      if (ranks.rank() == 3) held.memory[1][11] ^= std::byte{1};
      save_state(files, ranks, tensors, held.pieces, Json::object(), {.check_replicas = check});
    });
  };
  expect_all(run(true), "ranks 0 and 3 hold different values of tensors that should be equal: 'r'");
  EXPECT_TRUE(files.list("/root").empty());
  expect_all(run(false), "");
}

TEST(SaveStep, AnErrorBeforeItBeginsIsToldToAll) {
  MemoryFiles files;
  const auto thrown = run_ranks(2, [&](Ranks& ranks) {
    save_step(files, ranks, "/root", 0, [&]() -> StepState {
      if (ranks.rank() == 1) fail<UnsupportedError>("checkpoint", "'q' is sparse");
      return {};
    });
  });
  expect_all(thrown, "was not saved in /root: rank 1: 'q' is sparse");
}

TEST(SaveStep, PartialValuesAreRefusedByName) {
  MemoryFiles files;
  OneRank ranks;
  std::vector<SavedTensor> tensors{saved("g", "f32[2] P(sum)@a", "[a=1]")};
  const std::vector<std::byte> memory(8);
  const std::vector<std::span<const std::byte>> pieces{memory};
  expect_error<ValueError>(
      [&] { save_state(files, ranks, tensors, pieces, Json::object()); },
      {"[checkpoint] step 1 was not saved in /root: rank 0: 'g' is a partial value"});
}

TEST(SaveStep, ValuesThatJsonCannotHoldAreNamed) {
  MemoryFiles files;
  OneRank ranks;
  const auto with = [&](Json value) { save_state(files, ranks, {}, {}, value); };
  expect_error<ValueError>(
      [&] {
        with({{"user", {{"loss", std::nan("")}}}});
      },
      {"the value 'user.loss' is nan, which JSON cannot hold"});
  expect_error<ValueError>(
      [&] {
        with({{"name", "\xff"}});
      },
      {"the value 'name' is a text that is not UTF-8"});
  with({{"fine", {1, 2.5, "x", nullptr, true}}});
}

TEST(SaveStep, FoldersThatAreNotTheSameAreRefused) {
  MemoryFiles shared;
  MemoryFiles another;
  const auto tensors = small_state();
  const auto thrown = run_ranks(
      4, [&](Ranks& ranks) { save(ranks.rank() == 2 ? another : shared, ranks, tensors, 3, 1); });
  expect_all(thrown, "rank 2: on the machine of rank 2 /root is not the folder that rank 0 sees");
  EXPECT_TRUE(shared.list("/root").empty());
}

TEST(SaveStep, SpaceIsAskedForBeforeTheFirstByte) {
  MemoryFiles files;
  files.room = 2000000;
  expect_all(save_all(files, small_state(), 4, 3, 1), "bytes are needed, and 2000000 are free");
  EXPECT_TRUE(files.list("/root").empty());
}

TEST(SaveStep, AFolderThatIsNotThereIsNamed) {
  MemoryFiles files;
  files.remove("/root");
  expect_all(save_all(files, small_state(), 4, 3, 1), "/root: no such folder; make it first");
}

TEST(SaveStep, AnErrorOfOneRankIsTheErrorOfAll) {
  MemoryFiles files;
  const auto tensors = small_state();
  save_all(files, tensors, 4, 3, 1);
  files.before = [](std::size_t, const std::string& operation) {
    if (operation.starts_with("write") && operation.find("00002-of") != std::string::npos) {
      fail<FileError>("checkpoint", "00002: No space left on device");
    }
  };
  expect_all(save_all(files, tensors, 4, 4, 2),
             "step 4 was not saved in /root: rank 2: 00002: No space left on device");
  EXPECT_EQ(files.list("/root"), std::vector<std::string>{"step-00000003"});
  EXPECT_EQ(load_difference(files, "/root/step-00000003", tensors, 4, 1), "");
}

/// What a reader finds: the steps, each of which is right.
void expect_old_or_new(MemoryFiles& files, std::span<const SavedTensor> tensors, bool replaces,
                       bool was_told, const std::string& where) {
  const auto steps = steps_in(files, "/root");
  ASSERT_FALSE(steps.empty()) << where;
  ASSERT_EQ(steps[0], 3) << where;
  if (replaces) {
    const std::string old = load_difference(files, "/root/step-00000003", tensors, 2, 1);
    const std::string fresh = load_difference(files, "/root/step-00000003", tensors, 2, 2);
    ASSERT_TRUE(fresh.empty() || (old.empty() && !was_told)) << where << ": " << fresh;
    return;
  }
  ASSERT_EQ(load_difference(files, "/root/step-00000003", tensors, 2, 1), "") << where;
  ASSERT_TRUE(!was_told || steps.size() == 2) << where;
  if (steps.size() == 2) {
    ASSERT_EQ(load_difference(files, "/root/step-00000004", tensors, 2, 2), "") << where;
  }
}

/// Whether a step is replaced, and the form.
const std::vector<std::pair<bool, std::optional<std::uint64_t>>> kCases{
    {false, {}}, {true, {}}, {false, 1000}, {true, 1000}};

/// The machine goes down before each operation in turn, and forgets what was not synced, or not.
TEST(SaveStep, ACrashAnywhereLeavesTheOldStepOrTheNew) {
  const std::vector<SavedTensor> tensors{saved("w", "f32[7, 6@a]", "[a=2]"),
                                         saved("big", "c128[300000]", "[a=2]")};
  std::size_t points = 0;
  for (const auto& [replaces, form] : kCases) {
    for (const bool forgets : {false, true}) {
      for (const bool torn : {false, true}) {
        for (std::size_t point = 0;; ++point, ++points) {
          MemoryFiles files;
          save_all(files, tensors, 2, 3, 1);
          files.restart(false);
          files.torn = torn;
          bool crashed = false;
          files.before = [&](std::size_t number, const std::string&) {
            if (number != point) return;
            crashed = true;
            throw Crash{};
          };
          const auto thrown =
              save_all(files, tensors, 2, replaces ? 3 : 4, 2, {.replace = replaces}, form);
          files.restart(forgets);
          expect_old_or_new(
              files, tensors, replaces, !thrown[0] && !thrown[1],
              concat("point ", point, replaces ? ", replaced" : "", forgets ? ", forgetful" : ""));
          if (::testing::Test::HasFatalFailure()) return;
          // What was left does not stand in the way of the next one.
          const auto again = save_all(files, tensors, 2, replaces ? 3 : 4, 2, {.replace = true});
          ASSERT_EQ(text_of(again[0]), "");
          if (!crashed) break;
        }
      }
    }
  }
  EXPECT_GT(points, 100U);
}

/// Each operation in turn fails, as on a full or broken disk, and the process goes on.
TEST(SaveStep, AFailureAnywhereLeavesTheOldStepOrTheNew) {
  const std::vector<SavedTensor> tensors{saved("w", "f32[7, 6@a]", "[a=2]"),
                                         saved("big", "c128[300000]", "[a=2]")};
  for (const auto& [replaces, form] : kCases) {
    for (std::size_t point = 0;; ++point) {
      MemoryFiles files;
      save_all(files, tensors, 2, 3, 1);
      files.restart(false);
      files.torn = true;
      std::string failed;
      files.before = [&](std::size_t number, const std::string& operation) {
        if (number != point) return;
        failed = operation;
        fail<FileError>("checkpoint", "disk: Input/output error");
      };
      const auto thrown =
          save_all(files, tensors, 2, replaces ? 3 : 4, 2, {.replace = replaces}, form);
      const std::string where = concat("point ", point, ": ", failed);
      // Only leftovers may fail to be removed without a word.
      if (!failed.empty() && !failed.starts_with("remove /root/.")) {
        EXPECT_NE(text_of(thrown[0]).find("Input/output error"), std::string::npos) << where;
        EXPECT_EQ(text_of(thrown[0]), text_of(thrown[1])) << where;
      }
      files.restart(false);
      expect_old_or_new(files, tensors, replaces, !thrown[0], where);
      if (::testing::Test::HasFatalFailure() || failed.empty()) break;
    }
  }
}

}  // namespace
}  // namespace intarsia::checkpoint
