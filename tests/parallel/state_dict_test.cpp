#include "intarsia/state_dict.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/fully_shard.h"
#include "intarsia/lockstep.h"
#include "intarsia/optim.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::values;

/// With a tied weight, buffers, and lengths that 2 and 3 do not divide.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : up(register_module("up", torch::nn::Linear(5, 7))),
        norm(register_module("norm", torch::nn::BatchNorm1d(7))),
        down(register_module("down", torch::nn::Linear(7, 5))) {
    to(at::kDouble);
    tied = register_parameter("tied", up->weight);
  }
  at::Tensor forward(const at::Tensor& x) {
    return down(norm(up(x)).tanh()).mm(tied.t()).square().mean();
  }
  torch::nn::Linear up;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear down;
  at::Tensor tied;
};
TORCH_MODULE(Net);

at::Tensor batch(int step) { return values({12, 5}, static_cast<std::uint64_t>(100 + step)); }

torch::optim::AdamWOptions rates() { return torch::optim::AdamWOptions(0.02).eps(1e-3); }

/// The parameters, each once, as Python's optimizers want them.
std::vector<at::Tensor> once_each(const torch::nn::Module& net) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& p : net.parameters()) {
    if (std::none_of(out.begin(), out.end(), [&](const auto& q) { return q.is_same(p); })) {
      out.push_back(p);
    }
  }
  return out;
}

void train(NetImpl& net, torch::optim::Optimizer& optimizer, int from, int to,
           const std::function<at::Tensor(const at::Tensor&)>& lay_out) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    net.forward(lay_out(batch(step))).backward();
    optimizer.step();
  }
}
at::Tensor as_it_is(const at::Tensor& t) { return t; }

struct Saved {
  NamedTensors model;
  NamedTensors optimizer;
};

Saved save(const Net& net, const torch::optim::Optimizer& optimizer) {
  return {full_state_dict(*net), full_optimizer_state_dict(optimizer, *net)};
}

/// Of a plain run of so many steps.
Saved plain_run(int steps) {
  at::manual_seed(7);
  Net net;
  torch::optim::AdamW optimizer(once_each(*net), rates());
  train(*net, optimizer, 0, steps, as_it_is);
  return save(net, optimizer);
}

void expect_equal(const NamedTensors& got, const NamedTensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].first, want[i].first);
    EXPECT_FALSE(has_layout(got[i].second));
    testing::expect_whole(got[i].second, want[i].second, want[i].first, 1e-11);
  }
}

/// Where a run is done: a mesh, and how parameters lie in use; none of both: plain.
struct Place {
  std::string mesh;
  LayoutPatterns layouts = {};
};
const std::vector<Place> kPlaces{
    {"[dp=2]"},
    {"[dp=3]"},
    {"[dp=1]"},
    {"[dp=2,tp=2]",
     {{"up.*", "R,S(0)"}, {"tied", "R,S(0)"}, {"down.weight", "R,S(1)"}, {"norm.*", "R,R"}}},
    {""}};

/// Goes on with a run that another place began.
Saved run_on(World* world, const Place& place, const Saved& before, int from, int to) {
  const auto go_on = [&](Net& net, const auto& lay_out) {
    torch::optim::AdamW optimizer(once_each(*net), rates());
    load_full_state_dict(*net, before.model);
    load_full_optimizer_state_dict(optimizer, *net, before.optimizer);
    EXPECT_NO_THROW(check_optimizer(optimizer, named_tensors(net->named_parameters())));
    train(*net, optimizer, from, to, lay_out);
    return save(net, optimizer);
  };
  if (place.mesh.empty()) {
    Net net;
    return go_on(net, as_it_is);
  }
  const Mesh mesh = Mesh::parse(place.mesh);
  auto net = build_sharded(*world, mesh, place.layouts, {.shard = {"dp"}}, [] { return Net(); });
  const Layout lies = Layout::replicated(mesh).with("dp", Placement::shard(0));
  return go_on(net.module, [&](const at::Tensor& t) { return distribute(t, lies, *world); });
}

TEST(StateDict, GoesOnInAnyOtherLayout) {
  const Saved begin = plain_run(0);
  const Saved half = plain_run(3);
  const Saved whole = plain_run(6);
  for (const Place& begun : kPlaces) {
    for (const Place& ended : kPlaces) {
      const auto in_world = [](const Place& place, const Saved& before, int from, int to) {
        if (place.mesh.empty()) return run_on(nullptr, place, before, from, to);
        const auto world = lockstep_world(Mesh::parse(place.mesh).size());
        return run_on(world.get(), place, before, from, to);
      };
      const Saved first = in_world(begun, begin, 0, 3);
      expect_equal(first.model, half.model);
      expect_equal(first.optimizer, half.optimizer);
      const Saved second = in_world(ended, first, 3, 6);
      expect_equal(second.model, whole.model);
      expect_equal(second.optimizer, whole.optimizer);
    }
  }
}

TEST(StateDict, IsTheSameOnRanksAsThreads) {
  const Saved begin = plain_run(1);
  const Saved whole = plain_run(3);
  for (const std::string mesh : {"[dp=1]", "[dp=2]", "[dp=3]"}) {
    testing::on_mesh(Mesh::parse(mesh), [&](World& world) {
      const Saved got = run_on(&world, {mesh}, begin, 1, 3);
      expect_equal(got.model, whole.model);
      expect_equal(got.optimizer, whole.optimizer);
    });
  }
}

TEST(StateDict, IsMemoryOfItsOwnAndTiedOnce) {
  const auto world = lockstep_world(2);
  const Mesh mesh = Mesh::parse("[dp=2]");
  for (const bool plain : {false, true}) {
    Net net = plain ? Net() : build(*world, mesh, LayoutPatterns{}, [] { return Net(); });
    const NamedTensors state = full_state_dict(*net);
    std::map<std::string, at::Tensor> named(state.begin(), state.end());
    ASSERT_EQ(named.size(), 10U);
    EXPECT_TRUE(named.at("tied").is_same(named.at("up.weight")));
    const at::Tensor before = named.at("up.weight").clone();
    const at::NoGradGuard no_grad;
    net->up->weight.zero_();
    EXPECT_TRUE(named.at("up.weight").equal(before));
  }
}

TEST(StateDict, IsKeptByRank0OnlyWhereAsked) {
  run_in_process(2, [](World& world) {
    const Mesh mesh = Mesh::parse("[dp=2]");
    auto net =
        build_sharded(world, mesh, LayoutPatterns{}, {.shard = {"dp"}}, [] { return Net(); });
    torch::optim::SGD optimizer(once_each(*net), torch::optim::SGDOptions(0.1).momentum(0.9));
    net->forward(distribute(batch(0), Layout::parse("S(0)", mesh), world)).backward();
    optimizer.step();
    const FullStateOptions options{.on_cpu = true, .only_on_rank_0 = true};
    EXPECT_EQ(full_state_dict(*net, options).size(), world.rank() == 0 ? 10U : 0U);
    EXPECT_EQ(full_optimizer_state_dict(optimizer, *net, options).size(),
              world.rank() == 0 ? 7U : 0U);
  });
}

TEST(StateDict, RefusesWhatDoesNotFitBeforeAnythingIsChanged) {
  const auto world = lockstep_world(2);
  Net net = build(*world, Mesh::parse("[dp=2]"), LayoutPatterns{{"up.weight", "S(0)"}},
                  [] { return Net(); });
  const NamedTensors before = full_state_dict(*net);
  NamedTensors wrong = full_state_dict(*Net());
  std::erase_if(wrong, [](const auto& item) { return item.first == "down.bias"; });
  for (auto& [name, tensor] : wrong) {
    if (name == "up.bias") tensor = at::zeros({3});
    if (name == "down.weight") tensor = net->down->weight.detach();
  }
  wrong.emplace_back("more", at::zeros({1}));
  expect_error<ValueError>(
      [&] { load_full_state_dict(*net, wrong); },
      {"[load_full_state_dict] the dict does not fit: it lacks down.bias", "nothing is called more",
       "'up.bias' has sizes (3), where (7) are due",
       "'down.weight' is f64[5, 7] on [dp=2], where a plain one is due", "nothing was changed"});
  expect_equal(full_state_dict(*net), before);
  NamedTensors part{{"down.bias", at::ones({5})}, {"more", at::ones({1})}};
  load_full_state_dict(*net, part, /*strict=*/false);
  testing::expect_whole(net->down->bias, at::ones({5}, at::kDouble), "cast and laid out");

  torch::optim::AdamW optimizer(once_each(*net), rates());
  net->forward(distribute(batch(0), Layout::parse("[dp=2] S(0)"), *world)).backward();
  optimizer.step();
  const NamedTensors state = full_optimizer_state_dict(optimizer, *net);
  NamedTensors other = state;
  std::erase_if(other, [](const auto& item) { return item.first == "state.up.bias.step"; });
  other.emplace_back("state.up.bias.momentum_buffer", at::zeros({7}));
  for (auto& [name, tensor] : other) {
    if (name == "state.down.bias.exp_avg") tensor = at::zeros({9});
  }
  expect_error<ValueError>(
      [&] { load_full_optimizer_state_dict(optimizer, *net, other); },
      {"it lacks state.up.bias.step", "nothing is called state.up.bias.momentum_buffer",
       "'state.down.bias.exp_avg' has sizes (9), where (5) are due"});
  expect_equal(full_optimizer_state_dict(optimizer, *net), state);
  Net stranger;
  expect_error<ValueError>([&] { full_optimizer_state_dict(optimizer, *stranger); },
                           {"parameter 0 of group 0", "is none of the module's"});
  torch::optim::LBFGS unknown(once_each(*net));
  expect_error<UnsupportedError>([&] { load_full_optimizer_state_dict(unknown, *net, {}); },
                                 {"knows the states of Adam, AdamW, SGD"});
}

template <class Optimizer, class Options>
void expect_round_trip(World& world, const Options& options) {
  const Mesh mesh = Mesh::parse("[dp=2]");
  auto net = build_sharded(world, mesh, LayoutPatterns{}, {.shard = {"dp"}}, [] { return Net(); });
  Optimizer first(once_each(*net), options);
  train(*net.module, first, 0, 2,
        [&](const at::Tensor& t) { return distribute(t, Layout::parse("S(0)", mesh), world); });
  const NamedTensors state = full_optimizer_state_dict(first, *net);
  EXPECT_GT(state.size(), 6U);
  Optimizer second(once_each(*net), options);
  load_full_optimizer_state_dict(second, *net, state);
  expect_equal(full_optimizer_state_dict(second, *net), state);
}

TEST(StateDict, KnowsTorchsOptimizers) {
  const auto world = lockstep_world(2);
  namespace optim = torch::optim;
  expect_round_trip<optim::SGD>(*world, optim::SGDOptions(0.1).momentum(0.9));
  expect_round_trip<optim::Adam>(*world, optim::AdamOptions(0.1).amsgrad(true));
  expect_round_trip<optim::AdamW>(*world, optim::AdamWOptions(0.1));
  expect_round_trip<optim::Adagrad>(*world, optim::AdagradOptions(0.1));
  expect_round_trip<optim::RMSprop>(*world,
                                    optim::RMSpropOptions(0.1).momentum(0.9).centered(true));
}

TEST(StateDict, FilesAreReplacedWhenAllIsWritten) {
  const auto world = lockstep_world(2);
  Net net = build(*world, Mesh::parse("[dp=2]"), LayoutPatterns{{"up.weight", "S(0)"}},
                  [] { return Net(); });
  const auto folder = std::filesystem::temp_directory_path() /
                      ("intarsia_state_dict_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string path = folder / "model.pt";
  const NamedTensors state = full_state_dict(*net);
  save_state_dict(state, path);
  expect_equal(read_state_dict(path), state);
  const NamedTensors distributed = named_tensors(net->named_parameters());
  expect_error<ValueError>(
      [&] { save_state_dict(distributed, path); },
      {"[save_state_dict] 'tied' is f64[7@dp, 5] on [dp=2]", "full_state_dict(module)"});
  expect_equal(read_state_dict(path), state);
  expect_error<ValueError>([&] { save_state_dict(state, folder / "no" / "model.pt"); },
                           {"cannot be written"});
  expect_error<ValueError>([&] { read_state_dict(folder / "none.pt"); }, {"cannot be read"});
  std::ofstream(path) << "nonsense";
  expect_error<ValueError>([&] { read_state_dict(path); }, {"is no file of save_state_dict"});
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 1U);
  std::filesystem::remove_all(folder);
}

TEST(StateDict, WhatHasNoMemoryOfItsOwnSaysTheWayOut) {
  const auto world = lockstep_world(2);
  const at::Tensor cut = distribute(at::ones({4}), Layout::parse("[dp=2] S(0)"), *world);
  expect_error<c10::NotImplementedError>(
      [&] { cut.storage(); },
      {"[storage] f32[4@dp] on [dp=2] is stored in pieces", "full_state_dict(module)"});
}

}  // namespace
}  // namespace intarsia
