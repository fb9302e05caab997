#include "intarsia/checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/state/checkpoint_folder.h"
#include "error_text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::numbers;
using Folder = testing::CheckpointFolder;

/// Layouts of four tensors on a mesh; the last is plain.
const std::vector<std::string> kLayouts{
    "[a=2,b=2] S(0),S(1)", "[a=2,b=2] R,S(0)", "[a=4] S(1)",   "[a=2,b=2] S(0),S(0) | 0:b>a",
    "[a=2,b=2] SS(0,2),R", "[a=4] R",          "[a=2]+2 S(0)", "[a=2,b=2] SS(1,3),S(0)"};

NamedTensors state_on(World& world, std::size_t first, double from) {
  const auto laid_out = [&](std::size_t i, const at::Tensor& full) {
    return distribute(full, Layout::parse(kLayouts[(first + i) % kLayouts.size()]), world);
  };
  return {{"w", laid_out(0, numbers({7, 6}, from))},
          {"v", laid_out(1, numbers({3, 5}, from).to(at::kBFloat16))},
          {"empty", laid_out(2, numbers({0, 4}, from))},
          {"plain", numbers({5}, from)},
          {"scalar", at::full({}, from, at::kFloat)}};
}

void expect_state(const NamedTensors& state, double from) {
  for (const auto& [name, tensor] : state) {
    if (has_layout(tensor) && locals(tensor).empty()) continue;  // this rank is outside its mesh
    const at::Tensor expected = name == "scalar"
                                    ? at::full({}, from, at::kFloat)
                                    : numbers(tensor.sizes(), from).to(tensor.scalar_type());
    const at::Tensor now = has_layout(tensor) ? full(tensor) : tensor;
    EXPECT_TRUE(at::equal(now, expected)) << name << ' ' << describe(tensor);
  }
}

TEST(Checkpoint, IsSavedInOneLayoutAndLoadedInAnyOther) {
  Folder folder;
  run_in_process(4, [&](World& world) {
    for (std::size_t from = 0; from < kLayouts.size(); ++from) {
      const auto step = static_cast<std::int64_t>(from);
      save_checkpoint(world, folder.path(), step, state_on(world, from, 100. * from),
                      {{"n", std::to_string(from)}});
      for (std::size_t to = 0; to < kLayouts.size(); ++to) {
        const NamedTensors state = state_on(world, to, -1);
        EXPECT_EQ(load_checkpoint(world, folder.path(), state).step, step);
        expect_state(state, 100. * from);
      }
    }
  });
  EXPECT_EQ(checkpoint_steps(folder.path()).size(), kLayouts.size());
  const CheckpointContents contents = read_checkpoint(folder.path(), 3);
  EXPECT_EQ(contents.values, (CheckpointValues{{"n", "3"}}));
  EXPECT_EQ(contents.tensors.at("w").layout.to_string(), kLayouts[3]);
}

TEST(Checkpoint, LockstepAndAWorldOfOneReadEachOther) {
  Folder folder;
  const auto many = lockstep_world(4);
  save_checkpoint(*many, folder.path(), 1, state_on(*many, 0, 7));
  const auto one = World::connect(Rendezvous{});
  const NamedTensors plain{{"w", at::zeros({7, 6}, at::kDouble)},
                           {"v", at::zeros({3, 5}, at::kBFloat16)},
                           {"empty", at::zeros({0, 4}, at::kDouble)},
                           {"plain", at::zeros({5}, at::kDouble)},
                           {"scalar", at::zeros({}, at::kFloat)}};
  load_checkpoint(*one, folder.path(), plain);
  expect_state(plain, 7);
  save_checkpoint(*one, folder.path(), 2, plain);
  const NamedTensors state = state_on(*many, 3, -1);
  EXPECT_EQ(load_checkpoint(*many, folder.path(), state).step, 2);
  expect_state(state, 7);
}

TEST(Checkpoint, WhatIsReadIsAWrite) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    const at::Tensor w = distribute(numbers({4, 2}, 0), Layout::parse("[a=2] S(0)"), world);
    save_checkpoint(world, folder.path(), 0, {{"w", w}});
    w.add_(5);
    // A move that is remembered must not be found again.
    EXPECT_TRUE(at::equal(full(w), numbers({4, 2}, 5)));
    const auto version = w._version();
    load_checkpoint(world, folder.path(), {{"w", w}});
    EXPECT_GT(w._version(), version);
    EXPECT_TRUE(at::equal(full(w), numbers({4, 2}, 0)));
    // Pieces that are no dense memory are read as well.
    at::Tensor strided = at::zeros({2, 4}, at::kDouble).t();
    load_checkpoint(world, folder.path(), {{"w", strided}});
    EXPECT_TRUE(at::equal(strided, numbers({4, 2}, 0)));
  });
}

TEST(Checkpoint, WhatDoesNotFitIsListedBeforeAnythingChanges) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    save_checkpoint(world, folder.path(), 4, {{"a", at::ones({2})}, {"b", at::ones({3})}});
    const at::Tensor a = at::zeros({2});
    const auto refused = [&](const NamedTensors& state, const std::string& text) {
      expect_error<ValueError>([&] { load_checkpoint(world, folder.path(), state); }, {text});
      EXPECT_EQ(a.sum().item<double>(), 0);
    };
    refused({{"a", a}, {"c", at::ones({3})}},
            "step 4 does not fit: it lacks c; nobody asks for b; nothing was changed");
    refused({{"a", a}, {"b", at::ones({4})}}, "'b' is f32[3] there and f32[4] here");
    refused({{"a", a}, {"b", at::ones({3}, at::kDouble)}}, "'b' is f32[3] there and f64[3] here");
    refused({{"a", a}, {"a", a}}, "'a' is asked for twice");
    load_checkpoint(world, folder.path(), {{"a", a}}, {.strict = false});
    EXPECT_EQ(a.sum().item<double>(), 2);
  });
}

TEST(Checkpoint, ErrorsAreTheSameOnAllRanks) {
  Folder folder;
  run_in_process(3, [&](World& world) {
    const at::Tensor w = at::ones({3});
    const auto refused = [&](const std::function<void()>& call, const std::string& text) {
      expect_error<Error>(call, {text});
    };
    refused([&] { load_checkpoint(world, folder.path(), {{"w", w}}); }, folder.path());
    const at::Tensor mine = world.rank() == 1 ? at::zeros({3}) : w;
    refused(
        [&] {
          save_checkpoint(world, folder.path(), 0, {{"w", mine}});
        },
        "ranks 0 and 1 hold different values of tensors that should be equal: 'w'");
    refused(
        [&] {
          save_checkpoint(world, folder.path(), 0, {{"w", world.rank() == 2 ? at::Tensor() : w}});
        },
        "rank 2: 'w' is an undefined tensor");
    refused(
        [&] {
          save_checkpoint(world, folder.path(), 0, {{"w", w}}, {{"v", "{"}});
        },
        "the value 'v' is no JSON: {");
    const at::Tensor partial =
        from_local(w, Layout::parse("[a=3] P(sum)"), world, {.shape = {{3}}});
    refused(
        [&] {
          save_checkpoint(world, folder.path(), 0, {{"g", partial}});
        },
        "'g' is a partial value");
    save_checkpoint(world, folder.path(), 0, {{"w", w}});
    refused([&] { save_checkpoint(world, folder.path(), 0, {{"w", w}}); }, "is there already");
    save_checkpoint(world, folder.path(), 0, {{"w", w}}, {}, {.replace = true});
    refused(
        [&] {
          load_checkpoint(world, folder.path(), {{"w", w}}, {.step = world.rank()});
        },
        "rank 1 loads another step or folder than rank 0");
    refused(
        [&] {
          load_checkpoint(world, folder.path(), {{"w", w}}, {.step = 9});
        },
        "no step 9; there are 0");
    if (world.rank() == 0) {
      std::fstream file(folder.path() + "/step-00000000/00000-of-00003.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('x');
    }
    refused(
        [&] {
          load_checkpoint(world, folder.path(), {{"w", w}});
        },
        "00000-of-00003.safetensors: damaged");
  });
}

TEST(Checkpoint, HoldsTheTensorsOfAModule) {
  Folder folder;
  const auto one = World::connect(Rendezvous{});
  torch::nn::Linear net(4, 3);
  torch::nn::Linear other(4, 3);
  save_checkpoint(*one, folder.path(), 0, tensors_of(net));
  load_checkpoint(*one, folder.path(), tensors_of(other));
  EXPECT_TRUE(at::equal(net->weight, other->weight));
  EXPECT_TRUE(other->weight.requires_grad());
}

TEST(Checkpoint, AnOlderStepIsTakenWhenAsked) {
  Folder folder;
  run_in_process(4, [&](World& world) {
    for (const std::int64_t step : {1, 2, 3}) {
      save_checkpoint(world, folder.path(), step, state_on(world, 1, 10. * step));
    }
    if (world.rank() == 0) {
      const std::filesystem::path steps(folder.path());
      std::ofstream(steps / "step-00000003" / "manifest.json", std::ios::app) << ' ';
      std::fstream data(steps / "step-00000002" / "00000-of-00004.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
      data.seekp(-1, std::ios::end);
      data.put('\x55');
    }
    const Comm all = world.everyone();
    barrier(all);
    NamedTensors state = state_on(world, 1, -1);
    expect_error<FileError>([&] { load_checkpoint(world, folder.path(), state); },
                            {"manifest.json"});
    expect_error<FileError>([&] { find_checkpoint(world, folder.path()); }, {"manifest.json"});
    EXPECT_EQ(find_checkpoint(world, folder.path(), {}, {}, true).step, 2);
    EXPECT_EQ(load_checkpoint(world, folder.path(), state, {.fall_back = true}).step, 1);
    expect_state(state, 10);
    EXPECT_TRUE(any_checkpoint(world, folder.path()));
    EXPECT_FALSE(any_checkpoint(world, folder.path() + "/none"));
    expect_error<FileError>([&] { find_checkpoint(world, folder.path(), {}, 1); },
                            {"there are no checkpoints before step 1"});
  });
}

TEST(Checkpoint, DtypesAreConvertedWhenAsked) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    const auto state = [&](at::ScalarType type, double from) {
      return NamedTensors{
          {"w", distribute(numbers({7, 6}, from).to(type), Layout::parse("[a=2] S(1)"), world)}};
    };
    save_checkpoint(world, folder.path(), 0, state(at::kDouble, 5));
    const NamedTensors into = state(at::kBFloat16, 0);
    expect_error<ValueError>([&] { load_checkpoint(world, folder.path(), into); },
                             {"'w' is f64[7,6] there and bf16[7,6] here"});
    load_checkpoint(world, folder.path(), into, {.convert = true});
    EXPECT_TRUE(at::equal(full(into[0].second), numbers({7, 6}, 5).to(at::kBFloat16)));
  });
}

}  // namespace
}  // namespace intarsia
