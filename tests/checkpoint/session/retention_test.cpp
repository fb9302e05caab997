#include "checkpoint/session/retention.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/session/save_step.h"
#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::Crash;
using intarsia::testing::load_difference;
using intarsia::testing::MemoryFiles;
using intarsia::testing::save;
using intarsia::testing::saved;

using Steps = std::vector<std::int64_t>;

const std::vector<SavedTensor>& state() {
  static const std::vector<SavedTensor> tensors{saved("w", "f32[8]", "[a=1]")};
  return tensors;
}

void save_steps(MemoryFiles& files, const Steps& steps) {
  OneRank ranks;
  for (const std::int64_t step : steps) save(files, ranks, state(), step, 1);
}

void damage(MemoryFiles& files, std::int64_t step) {
  const std::string path = join_path(join_path("/root", step_name(step)), kManifestName);
  files.remove(path);
  write_text(files, path, "{}");
}

TEST(Retention, TheNewestStay) {
  MemoryFiles files;
  save_steps(files, {5, 10, 15, 20});
  EXPECT_EQ(remove_old_steps(files, "/root", 2), (Steps{10, 5}));
  EXPECT_EQ(steps_in(files, "/root"), (Steps{15, 20}));
  EXPECT_TRUE(remove_old_steps(files, "/root", 2).empty());
}

TEST(Retention, ADamagedStepNeitherCountsNorGoes) {
  MemoryFiles files;
  save_steps(files, {1, 2, 3, 4});
  damage(files, 4);
  damage(files, 1);
  EXPECT_EQ(remove_old_steps(files, "/root", 1), Steps{2});
  EXPECT_EQ(steps_in(files, "/root"), (Steps{1, 3, 4}));
}

TEST(Retention, WhatWasLeftIsRemovedAndNothingElse) {
  MemoryFiles files;
  save_steps(files, {1});
  files.make_folder("/root/.step-00000002.saving-0123456789abcdef");
  files.make_folder("/root/.step-00000000.removed");
  files.make_folder("/root/.cache");
  files.make_folder("/root/notes");
  EXPECT_EQ(remove_unfinished(files, "/root").size(), 2U);
  EXPECT_EQ(files.list("/root"), (std::vector<std::string>{".cache", "notes", "step-00000001"}));
}

TEST(Retention, ACrashAnywhereLeavesStepsThatLoad) {
  for (std::size_t at = 0;; ++at) {
    MemoryFiles files;
    save_steps(files, {1, 2, 3});
    bool crashed = false;
    const std::size_t first = files.operations();
    files.before = [&](std::size_t number, const auto&) {
      if (number == first + at) throw Crash{};
    };
    try {
      remove_old_steps(files, "/root", 1);
    } catch (const Crash&) {
      crashed = true;
    }
    files.restart(true);
    for (const std::int64_t step : steps_in(files, "/root")) {
      ASSERT_EQ(load_difference(files, join_path("/root", step_name(step)), state(), 1, 1), "");
    }
    remove_unfinished(files, "/root");
    remove_old_steps(files, "/root", 1);
    ASSERT_EQ(files.list("/root"), std::vector<std::string>{"step-00000003"});
    if (!crashed) break;
    ASSERT_LT(at, 100U);
  }
}

}  // namespace
}  // namespace intarsia::checkpoint
