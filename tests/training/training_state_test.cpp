#include "intarsia/training_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/state/checkpoint_folder.h"
#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/fully_shard.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/optim.h"
#include "intarsia/state_dict.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

namespace optim = torch::optim;
using testing::expect_error;
using testing::numbers;
using Folder = testing::CheckpointFolder;

/// Lengths that 2 and 3 do not divide, a tied weight, and buffers.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    up = register_module("up", torch::nn::Linear(5, 7));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    tied = register_parameter("tied", up->weight);
    to(at::kDouble);
    tied = up->weight;
  }
  at::Tensor forward(const at::Tensor& x) { return norm(up(x)).tanh().mm(tied).square().mean(); }
  torch::nn::Linear up = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  at::Tensor tied;
};

std::vector<at::Tensor> matrices_or_all(const torch::nn::Module& net, bool only_matrices) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& p : net.parameters()) {
    const bool is_there =
        std::any_of(out.begin(), out.end(), [&](const auto& q) { return q.is_same(p); });
    if (!is_there && (!only_matrices || p.dim() == 2)) out.push_back(p);
  }
  return out;
}

/// A run on a mesh of some ranks, or plain, with a generator for its data.
template <class Optimizer, class Options>
struct Run {
  Run(World& w, const std::string& mesh_text, const Options& options)
      : world(w),
        mesh(Mesh::parse(mesh_text)),
        generator(at::make_generator<at::CPUGeneratorImpl>(3)) {
    at::manual_seed(7);
    net = build_sharded(world, mesh, {}, {.shard = {"dp"}},
                        [] { return std::make_shared<NetImpl>(); });
    optimizer = std::make_unique<Optimizer>(
        matrices_or_all(*net.module, std::is_same_v<Optimizer, Muon>), options);
    state.add("model", *net.module).add("optimizer", *optimizer).add("data", generator);
  }

  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      const at::Tensor x = at::randn({12, 5}, generator, at::TensorOptions(at::kDouble));
      optimizer->zero_grad();
      net.module->forward(distribute(x, Layout::replicated(mesh), world)).backward();
      optimizer->step();
      state.set("samples", std::to_string(samples += 12));
    }
  }

  World& world;
  Mesh mesh;
  at::Generator generator;
  Sharded<std::shared_ptr<NetImpl>> net;
  std::unique_ptr<Optimizer> optimizer;
  TrainingState state;
  std::int64_t samples = 0;
};

void expect_close(const NamedTensors& got, const NamedTensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i].second, want[i].second, 1e-9, 1e-11)) << want[i].first;
  }
}

/// Saved on two ranks, and loaded into a new run on another mesh, which goes on like the first.
template <class Optimizer, class Options>
void expect_goes_on(const Options& options, const Options& others) {
  Folder folder;
  const auto two = lockstep_world(2);
  Run<Optimizer, Options> first(*two, "[dp=2]", options);
  first.steps(3);
  save_checkpoint(*two, folder.path(), 3, first.state);

  const auto three = lockstep_world(3);
  Run<Optimizer, Options> second(*three, "[dp=3]", others);
  second.steps(1);
  EXPECT_EQ(load_checkpoint(*three, folder.path(), second.state).step, 3);
  EXPECT_EQ(second.state.value("samples"), "36");
  expect_close(full_state_dict(*second.net.module), full_state_dict(*first.net.module));
  EXPECT_EQ(second.optimizer->param_groups()[0].options().get_lr(),
            first.optimizer->param_groups()[0].options().get_lr());
  EXPECT_EQ(second.state.values().at("optimizer"), first.state.values().at("optimizer"));
  first.steps(2);
  second.steps(2);
  expect_close(full_state_dict(*second.net.module), full_state_dict(*first.net.module));
}

TEST(TrainingState, GoesOnOnAnotherMesh) {
  expect_goes_on<optim::AdamW>(optim::AdamWOptions(0.1).amsgrad(true).eps(1e-3),
                               optim::AdamWOptions(0.3));
  expect_goes_on<optim::Adam>(optim::AdamOptions(0.1).betas({0.8, 0.9}).eps(1e-3),
                              optim::AdamOptions(0.3));
  expect_goes_on<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9), optim::SGDOptions(0.3));
  expect_goes_on<optim::SGD>(optim::SGDOptions(0.1), optim::SGDOptions(0.3).momentum(0.5));
  expect_goes_on<optim::Adagrad>(optim::AdagradOptions(0.1).eps(1e-3), optim::AdagradOptions(0.3));
  expect_goes_on<optim::RMSprop>(optim::RMSpropOptions(0.01).momentum(0.5).centered(true).eps(1e-3),
                                 optim::RMSpropOptions(0.3));
  const NewtonSchulz in_f64{.steps = 4, .dtype = at::kDouble};
  expect_goes_on<Muon>(MuonOptions(0.1).iteration(in_f64).scale(MuonScale::match_rms_adamw),
                       MuonOptions(0.3));
}

using AdamWRun = Run<optim::AdamW, optim::AdamWOptions>;

TEST(TrainingState, GoesOnInProcessesOfRanks) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    AdamWRun run(world, "[dp=2]", optim::AdamWOptions(0.1));
    EXPECT_EQ(resume_checkpoint(world, folder.path(), run.state), std::nullopt);
    run.steps(2);
    save_checkpoint(world, folder.path(), 2, run.state);
    run.steps(1);
    AdamWRun again(world, "[dp=2]", optim::AdamWOptions(0.2));
    EXPECT_EQ(resume_checkpoint(world, folder.path(), again.state), 2);
    again.steps(1);
    const auto want = full_state_dict(*run.net.module);
    const auto got = full_state_dict(*again.net.module);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i].second, want[i].second)) << want[i].first;  // bit for bit
    }
  });
}

TEST(TrainingState, FallsBackToAStepThatCanBeRead) {
  Folder folder;
  const auto world = lockstep_world(2);
  AdamWRun run(*world, "[dp=2]", optim::AdamWOptions(0.1));
  run.steps(1);
  save_checkpoint(*world, folder.path(), 1, run.state);
  const auto then = full_state_dict(*run.net.module);
  run.steps(1);
  save_checkpoint(*world, folder.path(), 2, run.state);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    const bool is_new = entry.path().string().find("2/") != std::string::npos;
    if (!is_new || entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('!');
  }
  expect_error<FileError>([&] { load_checkpoint(*world, folder.path(), run.state); },
                          {".safetensors"});
  EXPECT_EQ(resume_checkpoint(*world, folder.path(), run.state), 1);
  EXPECT_EQ(run.state.value("samples"), "12");
  expect_close(full_state_dict(*run.net.module), then);
}

TEST(TrainingState, RefusesWhatDoesNotFitOnAllRanks) {
  Folder folder;
  run_in_process(2, [&](World& world) {
    AdamWRun run(world, "[dp=2]", optim::AdamWOptions(0.1));
    run.steps(1);
    save_checkpoint(world, folder.path(), 1, run.state);
    const std::string before = run.state.values().at("optimizer");

    // One rank asks for something that is not there: all are told.
    TrainingState more;
    more.add("model", *run.net.module).add("optimizer", *run.optimizer).add("data", run.generator);
    if (world.rank() == 1) more.add("other", run.generator);
    const std::string told = world.rank() == 1 ? "[TrainingState] step 1 has nothing under 'other'"
                                               : "rank 1: step 1 has nothing under 'other'";
    expect_error<ValueError>([&] { load_checkpoint(world, folder.path(), more); }, {told});

    optim::SGD sgd(run.net.module->parameters(), optim::SGDOptions(0.1));
    TrainingState other;
    other.add("model", *run.net.module).add("optimizer", sgd).add("data", run.generator);
    expect_error<ValueError>([&] { load_checkpoint(world, folder.path(), other); },
                             {"'optimizer' trains ", "nothing was changed"});
    optim::Adam adam(matrices_or_all(*run.net.module, false), optim::AdamOptions(0.1));
    TrainingState coupled;
    coupled.add("model", *run.net.module).add("optimizer", adam).add("data", run.generator);
    expect_error<ValueError>([&] { load_checkpoint(world, folder.path(), coupled); },
                             {"group 0 of 'optimizer' has decoupled_weight_decay = true there"});
    EXPECT_EQ(run.state.values().at("optimizer"), before);
  });
}

TEST(TrainingState, LeavesOut) {
  Folder folder;
  const auto world = World::connect(Rendezvous{});
  torch::nn::Linear net(2, 2);
  optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.5).momentum(0.5));
  net(at::ones({2, 2})).sum().backward();
  optimizer.step();
  TrainingState all;
  all.add("model", net).add("optimizer", optimizer).add("t", at::ones({2}));
  save_checkpoint(*world, folder.path(), 1, all);
  TrainingState some;
  some.add("model", net).add("optimizer", optimizer).add("t", at::zeros({2}));
  some.leave_out("model.bias");
  EXPECT_EQ(some.tensors().size(), 4U);
  save_checkpoint(*world, folder.path(), 2, some);
  EXPECT_FALSE(read_checkpoint(folder.path(), 2).tensors.contains("model.bias"));

  const at::NoGradGuard no_grad;
  for (const std::int64_t step : {1, 2}) {
    net->bias.fill_(3);
    net->weight.fill_(3);
    load_checkpoint(*world, folder.path(), some, {.step = step});
    EXPECT_TRUE(at::equal(net->bias, at::full({2}, 3.F)));
    EXPECT_FALSE(at::equal(net->weight, at::full({2, 2}, 3.F)));
  }
  expect_error<ValueError>([&] { load_checkpoint(*world, folder.path(), all, {.step = 2}); },
                           {"it lacks model.bias"});
  load_checkpoint(*world, folder.path(), all, {.step = 2, .without = {"*.bias"}});
  expect_error<ValueError>(
      [&] { load_checkpoint(*world, folder.path(), all, {.step = 1, .without = {"optimizer.*"}}); },
      {"momentum_buffer' cannot be left out"});
  expect_error<ValueError>(
      [&] { load_checkpoint(*world, folder.path(), all, {.step = 1, .only = {"model.*"}}); },
      {"`only` is for modules and tensors; leave out 'optimizer'"});
}

TEST(TrainingState, RefusesNamesTwiceAndUnknownOptimizers) {
  torch::nn::Linear net(2, 2);
  TrainingState state;
  state.add("model", net).add("t", at::zeros({2})).set("n", "1").set("n", "2");
  EXPECT_EQ(state.value("n"), "2");
  expect_error<ValueError>([&] { state.add("t", at::zeros({2})); }, {"'t' is there already"});
  expect_error<ValueError>([&] { state.add("n", at::zeros({2})); }, {"'n' is there already"});
  expect_error<ValueError>([&] { state.set("model", "1"); }, {"'model' is no value"});
  expect_error<ValueError>([&] { state.value("m"); }, {"there is no value 'm'"});
  EXPECT_EQ(state.tensors().size(), 3U);
  optim::LBFGS unknown(net->parameters());
  state.add("optimizer", unknown);
  expect_error<UnsupportedError>([&] { state.tensors(); }, {"knows Adam, AdamW, SGD"});
}

/// A step of AdamW whose options were changed by hand.
void expect_option(const std::string& name, const nlohmann::json& value, const std::string& error) {
  Folder folder;
  const auto world = World::connect(Rendezvous{});
  torch::nn::Linear net(2, 2);
  optim::AdamW optimizer(net->parameters());
  TrainingState state;
  state.add("model", net).add("optimizer", optimizer);
  CheckpointValues values = state.values();
  auto json = nlohmann::json::parse(values.at("optimizer"));
  json["param_groups"][0]["options"][name] = value;
  values["optimizer"] = json.dump();
  save_checkpoint(*world, folder.path(), 1, state.tensors(), values);
  if (error.empty()) {
    load_checkpoint(*world, folder.path(), state);
  } else {
    expect_error<ValueError>([&] { load_checkpoint(*world, folder.path(), state); }, {error});
  }
}

TEST(OptimizerOptions, OfPythonThatCppHasNotAreRefusedWhereTheyMatter) {
  expect_option("maximize", true, "group 0 of 'optimizer' has maximize = true there");
  expect_option("maximize", false, "");
  expect_option("foreach", true, "");
  expect_option("fused", nullptr, "");
  expect_option("initial_lr", 0.5, "");
  expect_option("lr", 1, "");
  expect_option("lr", "fast", "has lr = \"fast\" there");
  expect_option("lr", {{"__tensor__", "x"}}, "has lr = ");
  expect_option("betas", {0.5}, "has betas = [0.5] there");
  expect_option("betas", {0.5, 0.25}, "");
}

}  // namespace
}  // namespace intarsia
