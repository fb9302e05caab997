#include "checkpoint/state/tensor_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "checkpoint/state/checkpoint_folder.h"
#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::numbers;

TEST(TensorState, APlainTensorIsReplicatedOverTheWorld) {
  run_in_process(2, [](World& world) {
    const auto types = types_of("test", world, {{"p", numbers({3}, 0)}});
    EXPECT_EQ(types[0].type.layout.to_string(), "[world=2] R");
  });
}

TEST(TensorState, WhatNoCheckpointHoldsIsNamed) {
  const auto world = World::connect(Rendezvous{});
  const auto type = [&](const at::Tensor& tensor) { type_of("test", *world, "q", tensor); };
  expect_error<ValueError>([&] { type(at::Tensor()); }, {"[test] 'q' is an undefined tensor"});
  expect_error<UnsupportedError>([&] { type(at::eye(2).to_sparse()); }, {"'q' is "});
  expect_error<UnsupportedError>([&] { type(at::empty({2}, at::kMeta)); }, {"'q' is "});
  expect_error<ValueError>(
      [&] {
        values_json("test", {{"n", "{"}});
      },
      {"[test] the value 'n' is no JSON: {"});
}

TEST(TensorState, PiecesAreDense) {
  const auto world = World::connect(Rendezvous{});
  const at::Tensor rows = numbers({3, 4}, 0);
  const RankState state = state_of(*world, {{"rows", rows}, {"turned", rows.t()}}, 0);
  EXPECT_EQ(state.pieces[0].data(), static_cast<const std::byte*>(rows.const_data_ptr()));
  EXPECT_TRUE(at::equal(state.dense[1], rows.t()));
  EXPECT_EQ(state.pieces[1].size(), 3U * 4 * 8);
}

TEST(TensorState, EveryRankOfLockstepHasItsPieces) {
  const auto world = lockstep_world(3);
  const at::Tensor w = distribute(numbers({3, 2}, 0), Layout::parse("[a=2]+1 S(0)"), *world);
  EXPECT_FALSE(piece_of(*world, w, 0).defined());
  EXPECT_EQ(piece_of(*world, w, 1).size(0), 2);
  EXPECT_EQ(piece_of(*world, w, 2).size(0), 1);
}

}  // namespace
}  // namespace intarsia::checkpoint
