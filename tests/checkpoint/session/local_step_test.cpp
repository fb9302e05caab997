#include "checkpoint/session/local_step.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/session/save_step.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::HeldState;
using intarsia::testing::load_difference;
using intarsia::testing::MemoryFiles;
using intarsia::testing::RandomStates;
using intarsia::testing::saved;
using intarsia::testing::text_of;

TEST(LocalStep, StagesItsShareOnly) {
  const std::vector<SavedTensor> tensors{saved("w", "f32[8@a, 6]", "[a=2]"),
                                         saved("big", "c128[200000]", "[a=2]")};
  std::uint64_t bytes = 0;
  for (const std::int64_t rank : {0, 1}) {
    const HeldState held(tensors, rank, 1);
    bytes += LocalStep({.tensors = tensors, .pieces = held.pieces}, rank, 2).staged_bytes();
  }
  EXPECT_EQ(bytes, 8U * 6 * 4 + 200000 * 16);
}

TEST(LocalStep, WhatWasStagedIsSavedWhateverHappensToThePieces) {
  RandomStates random(11);
  for (int i = 0; i < 60; ++i) {
    MemoryFiles files;
    const std::int64_t world = random.pick(1, 5);
    std::vector<SavedTensor> tensors;
    for (int t = 0; t < 5; ++t) {
      tensors.push_back(random.tensor("t" + std::to_string(t), world));
      if (t == 0) tensors.back().type = {DType::c128, {random.pick(1, 3), 90000}, {}};
      tensors.back() = random.elsewhere(tensors.back(), world);
    }
    const auto thrown = run_ranks(world, [&](Ranks& ranks) {
      HeldState held(tensors, ranks.rank(), 7);
      std::vector<std::byte> staging;
      const auto make = [&] {
        LocalStep step({.tensors = tensors, .pieces = held.pieces, .values = {{"version", 7}}},
                       ranks.rank(), world);
        step.hash_replicas();
        staging.resize(step.staged_bytes());
        step.stage(staging);
        for (auto& piece : held.memory) std::fill(piece.begin(), piece.end(), std::byte{0xff});
        return step;
      };
      save_local_step(files, ranks, "/root", 0, make);
    });
    for (const auto& each : thrown) ASSERT_EQ(text_of(each), "");
    ASSERT_EQ(load_difference(files, "/root/step-00000000", tensors, world, 7), "") << "case " << i;
  }
}

TEST(LocalStep, HashesDifferWhereReplicasDo) {
  const std::vector<SavedTensor> tensors{saved("w", "f32[8]", "[a=2]"),
                                         saved("mine", "f32[8@a]", "[a=2]")};
  const auto hashes = [&](std::uint64_t version) {
    const HeldState held(tensors, 0, version);
    LocalStep step({.tensors = tensors, .pieces = held.pieces}, 0, 2);
    EXPECT_TRUE(step.replica_hashes().empty());
    step.hash_replicas();
    return step.replica_hashes();
  };
  EXPECT_EQ(hashes(1).size(), 1U);
  EXPECT_EQ(hashes(1), hashes(1));
  EXPECT_NE(hashes(1), hashes(2));
}

}  // namespace
}  // namespace intarsia::checkpoint
