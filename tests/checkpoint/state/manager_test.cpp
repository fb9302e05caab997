#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "checkpoint/state/checkpoint_folder.h"
#include "error_text.h"
#include "intarsia/checkpoint_manager.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::numbers;
using Folder = testing::CheckpointFolder;
using Steps = std::vector<std::int64_t>;

NamedTensors state_of(World& world, double from) {
  return {{"w", distribute(numbers({7, 6}, from), Layout::parse("[a=2] S(1)"), world)},
          {"r", distribute(numbers({5}, from), Layout::parse("[a=2] R"), world)},
          {"plain", numbers({3}, from)}};
}

void expect_saved(World& world, const std::string& folder, std::int64_t step, double from) {
  const NamedTensors state = state_of(world, -1);
  load_checkpoint(world, folder, state, {.step = step});
  for (const auto& [name, tensor] : state) {
    const at::Tensor now = has_layout(tensor) ? full(tensor) : tensor;
    EXPECT_TRUE(at::equal(now, numbers(now.sizes(), from))) << name << " of step " << step;
  }
}

void add_one(const NamedTensors& state) {
  for (const auto& [name, tensor] : state) tensor.add_(1);
}

class CheckpointManagerModes : public ::testing::TestWithParam<SaveMode> {};

TEST_P(CheckpointManagerModes, SavesTheMomentOfTheCall) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    CheckpointManager manager(world.shared_from_this(), folder.path(),
                              {.every = 2, .first = true, .keep = 4, .mode = GetParam()});
    const NamedTensors state = state_of(world, 0);
    for (std::int64_t step = 1; step <= 9; ++step) {
      manager.wait_staged();  // what the optimizer's step begins with
      add_one(state);
      EXPECT_EQ(manager.after_step(step, state), step == 1 || step % 2 == 0);
    }
    manager.finish(9, state);
    if (world.rank() == 0) {  // which removes the others, and for which nobody waits
      EXPECT_EQ(checkpoint_steps(folder.path()), (Steps{4, 6, 8, 9}));
    }
    for (const std::int64_t step : {4, 6, 8, 9}) {
      expect_saved(world, folder.path(), step, static_cast<double>(step));
    }
    manager.finish(9, state);  // was saved
    EXPECT_EQ(manager.times().saves, 6);
    EXPECT_EQ(manager.last_step(), 9);
  });
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointManagerModes,
                         ::testing::Values(SaveMode::wait, SaveMode::behind, SaveMode::overlapped));

TEST(CheckpointManager, SavesInLockstep) {
  Folder folder;
  const auto world = lockstep_world(2);
  CheckpointManager manager(world, folder.path(), {.every = 1});
  const NamedTensors state = state_of(*world, 1);
  manager.after_step(1, state);
  add_one(state);
  manager.after_step(2, state);
  add_one(state);
  manager.wait();
  expect_saved(*world, folder.path(), 1, 1);
  expect_saved(*world, folder.path(), 2, 2);
}

TEST(CheckpointManager, AChangeBeforeTheCopyIsToldOnAllRanks) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    CheckpointManager manager(world.shared_from_this(), folder.path(),
                              {.mode = SaveMode::overlapped});
    const NamedTensors state = state_of(world, 0);
    manager.save(3, state);
    if (world.rank() == 1) state[2].second.add_(1);
    expect_error<ValueError>([&] { manager.wait(); },
                             {"step 3 was not saved",
                              "rank 1: 'plain' was changed before "
                              "wait_staged(): call it before the optimizer's step"});
    EXPECT_TRUE(checkpoint_steps(folder.path()).empty());
    manager.finish(3, state_of(world, 0));
    EXPECT_EQ(checkpoint_steps(folder.path()), Steps{3});
  });
}

TEST(CheckpointManager, ASecondFolderGetsEachStepToo) {
  Folder folder;
  Folder second;
  const std::string left = second.path() + "/.step-00000009.saving-0123456789abcdef";
  std::filesystem::create_directories(left);
  run_in_process(2, [&](World& world) {
    CheckpointManager manager(world.shared_from_this(), folder.path(),
                              {.keep = 1, .also = second.path()});
    const NamedTensors state = state_of(world, 0);
    manager.save(1, state);
    add_one(state);
    manager.save(2, state);
    add_one(state);
    manager.wait();
    for (const auto& path : {folder.path(), second.path()}) expect_saved(world, path, 2, 1);
    expect_saved(world, second.path(), 1, 0);  // which the first has removed
    EXPECT_FALSE(std::filesystem::exists(left));
    if (world.rank() == 0) EXPECT_EQ(checkpoint_steps(folder.path()), Steps{2});
  });
}

TEST(CheckpointManager, ASecondFolderThatFailsLeavesTheStepInTheFirst) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    CheckpointManager manager(world.shared_from_this(), folder.path(),
                              {.also = "/proc/no/such/folder"});
    const NamedTensors state = state_of(world, 0);
    manager.save(1, state);
    expect_error<FileError>([&] { manager.wait(); },
                            {"step 1 was not saved in /proc/no/such/folder", "no such folder"});
    expect_saved(world, folder.path(), 1, 0);
    EXPECT_EQ(manager.last_step(), 1);
    manager.finish(1, state);
  });
}

TEST(CheckpointManager, AnErrorComesWithTheNextCallAndOnce) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    NamedTensors state = state_of(world, 0);
    if (world.rank() == 1) state[2].second = at::eye(2).to_sparse();
    CheckpointManager manager(world.shared_from_this(), folder.path());
    manager.save(1, state);
    expect_error<UnsupportedError>([&] { manager.save(2, state_of(world, 0)); },
                                   {"step 1 was not saved in", "rank 1: 'plain' is "});
    manager.save(2, state_of(world, 0));
    manager.wait();
    EXPECT_EQ(checkpoint_steps(folder.path()), Steps{2});
    EXPECT_EQ(manager.times().failures, 1);
  });
}

TEST(CheckpointManager, AFailureIsReportedAndTrainingGoesOnIfAsked) {
  Folder folder;
  std::filesystem::create_directories(std::filesystem::path(folder.path()).parent_path());
  run_in_process(2, [&](World& world) {
    CheckpointManager manager(world.shared_from_this(), folder.path(), {.stop_on_failure = false});
    const NamedTensors state = state_of(world, 0);
    manager.save(1, state);
    manager.save(1, state);  // is there already
    EXPECT_NO_THROW(manager.save(2, state));
    manager.wait();
    EXPECT_EQ(manager.times().failures, 1);
    EXPECT_EQ(checkpoint_steps(folder.path()), (Steps{1, 2}));
  });
}

TEST(CheckpointManager, OneRankAsksAndAllSaveAndStop) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    CheckpointManager manager(world.shared_from_this(), folder.path(), {.heed_requests = true});
    const NamedTensors state = state_of(world, 0);
    std::int64_t step = 1;
    for (; !manager.stop_requested(); ++step) {
      if (step == 4 && world.rank() == 1) manager.request_stop();
      EXPECT_EQ(manager.after_step(step, state), step == 4);
    }
    EXPECT_EQ(step, 5);
    EXPECT_FALSE(manager.after_step(step, state));
    manager.wait();
    EXPECT_EQ(checkpoint_steps(folder.path()), Steps{4});
  });
}

TEST(CheckpointManager, WhatACrashLeftIsRemoved) {
  Folder folder;
  const std::filesystem::path left =
      std::filesystem::path(folder.path()) / ".step-00000007.saving-0123456789abcdef";
  std::filesystem::create_directories(left);
  const auto world = World::connect(Rendezvous{});
  CheckpointManager manager(world, folder.path());
  manager.save(1, {{"w", numbers({3}, 0)}});
  manager.wait();
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST(CheckpointManager, NumbersThatCannotBeAreRefused) {
  const auto world = World::connect(Rendezvous{});
  expect_error<ValueError>([&] { CheckpointManager(world, "x", {.every = -1}); },
                           {"[CheckpointManager] every is -1 and keep 10"});
}

/// Saves, changes, waits, failures and loads in any order: what a step holds is always what the
/// tensors were when it was saved.
TEST(CheckpointManager, AnyOrderOfCallsGivesWhatWasSaved) {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    Folder folder;
    run_in_process(2, [&](World& world) {
      std::mt19937 random(seed);  // the same on all ranks
      const auto mode = static_cast<SaveMode>(random() % 3);
      CheckpointManager manager(
          world.shared_from_this(), folder.path(),
          {.keep = 0, .mode = mode, .replace = true, .stop_on_failure = false});
      const NamedTensors state = state_of(world, 0);
      std::map<std::int64_t, double> saved;
      double now = 0;
      for (int call = 0; call < 25; ++call) {
        const auto step = static_cast<std::int64_t>(random() % 5);
        switch (random() % 5) {
          case 0:
          case 1:
            manager.save(step, state);
            saved[step] = now;
            break;
          case 2:
          case 3:
            manager.wait_staged();
            add_one(state);
            ++now;
            break;
          case 4:
            manager.wait();
            for (const auto& [there, from] : saved) {
              expect_saved(world, folder.path(), there, from);
            }
            break;
        }
      }
      manager.wait();
      EXPECT_EQ(manager.times().failures, 0);
      for (const auto& [there, from] : saved) expect_saved(world, folder.path(), there, from);
    });
  }
}

}  // namespace
}  // namespace intarsia
