#include "device/far_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include "checkpoint/state/checkpoint_folder.h"
#include "intarsia/checkpoint_manager.h"
#include "intarsia/fully_shard.h"
#include "intarsia/lockstep.h"
#include "intarsia/optim.h"
#include "intarsia/redistribute.h"
#include "intarsia/state_dict.h"
#include "intarsia/tensor.h"
#include "intarsia/training_state.h"

// The library on a device whose memory the host cannot touch: the same numbers as on the CPU.
namespace intarsia {
namespace {

using testing::far_calls;
using testing::far_device;
using testing::numbers;

const std::vector<std::string> kLayouts{"[a=2,b=2] R,R",       "[a=2,b=2] S(0),R",
                                        "[a=2,b=2] R,S(1)",    "[a=2,b=2] S(0),S(1)",
                                        "[a=2,b=2] S(1),S(1)", "[a=2,b=2] S(0),S(0) | 0:b>a",
                                        "[a=2,b=2] SS(0,2),R"};

bool is_on(const at::Tensor& t, at::Device device) { return t.device() == device; }

TEST(FarDevice, ItsMemoryIsClosedToTheHost) {
  const at::Tensor t = at::ones({3}).to(far_device());
  EXPECT_TRUE(is_on(t, far_device()));
  EXPECT_EQ(t.sum().item<double>(), 3);
  EXPECT_TRUE(at::equal((t * 2).t().cpu(), at::full({3}, 2.F)));
  EXPECT_DEATH({ std::printf("%f\n", *static_cast<const float*>(t.const_data_ptr())); }, "");
  const auto before = far_calls();
  const at::Tensor more = at::empty({1000}, at::TensorOptions(at::kDouble).device(far_device()));
  EXPECT_EQ(far_calls().live_bytes - before.live_bytes, 8000);
}

TEST(FarDevice, EveryRedistributionGivesTheSameTensor) {
  const auto world = lockstep_world(4, far_device());
  const at::Tensor full_value = numbers({7, 5}, 3).to(far_device());
  for (const std::string& from : kLayouts) {
    const at::Tensor t = distribute(full_value, Layout::parse(from), *world);
    EXPECT_TRUE(is_on(t, far_device()));
    for (const std::string& to : kLayouts) {
      const at::Tensor moved = redistribute(t, Layout::parse(to));
      for (const at::Tensor& piece : locals(moved)) EXPECT_TRUE(is_on(piece, far_device()));
      EXPECT_TRUE(at::equal(full(moved).cpu(), full_value.cpu())) << from << " to " << to;
    }
  }
}

TEST(FarDevice, PlainTensorsOfTheHostGoThere) {
  const auto world = lockstep_world(4, far_device());
  const Layout layout = Layout::parse("[a=2,b=2] S(0),R");
  const at::Tensor host = numbers({6, 2}, 1).requires_grad_();
  const at::Tensor t = distribute(host, layout, *world);
  for (const at::Tensor& piece : locals(t.detach())) EXPECT_TRUE(is_on(piece, far_device()));
  (t * t).sum().backward();
  EXPECT_TRUE(at::equal(host.grad(), 2 * host.detach()));

  const at::Tensor piece = numbers({3, 2}, 1).requires_grad_();
  const at::Tensor made = from_locals({piece, piece, piece, piece}, layout, *world);
  for (const at::Tensor& each : locals(made.detach())) EXPECT_TRUE(is_on(each, far_device()));
  full(made * 3).sum().backward();
  EXPECT_TRUE(piece.grad().is_cpu());
}

/// Values and gradients of a program of many kinds of ops, on one device and in one layout.
std::vector<at::Tensor> program(at::Device device, const std::string& layout) {
  const auto world = lockstep_world(4, device);
  const Layout here = Layout::parse(layout);
  const auto lay_out = [&](at::IntArrayRef sizes, double from) {
    return distribute((numbers(sizes, from) * 0.01).sin().to(device), here, *world)
        .requires_grad_();
  };
  const at::Tensor x = lay_out({6, 8}, 1);
  const at::Tensor w = lay_out({8, 5}, 2);
  const at::Tensor index =
      distribute(at::tensor({3, 0, 5, 3}).to(device), Layout::replicated(here.mesh()), *world);
  at::Tensor y = (x.mm(w) + w.sum(0)).tanh();
  y = at::layer_norm(y, {5}) + at::softmax(y, 1) * y.cumsum(0);
  y = at::cat({y, y.index_select(0, index)}, 0);
  y = std::get<0>(y.sort(0)).reshape({5, 10}).transpose(0, 1);
  y = at::where(y > 0.1, y, y.square()).masked_fill(y > 2, 1.5);
  const at::Tensor loss =
      at::log_softmax(y, -1).mean() + y.std() + y.flip(0).slice(0, 1, 9, 2).norm();
  loss.backward();
  return {full(y.detach()), full(loss.detach()), full(x.grad()), full(w.grad())};
}

TEST(FarDevice, OpsAndTheirGradientsAreTheCpus) {
  for (const std::string& layout : kLayouts) {
    const auto there = program(far_device(), layout);
    const auto here = program(at::kCPU, layout);
    for (std::size_t i = 0; i < here.size(); ++i) {
      EXPECT_TRUE(is_on(there[i], far_device()));
      // Some ops are made of others there.
      EXPECT_TRUE(at::allclose(there[i].cpu(), here[i], 1e-11, 1e-11)) << layout << ", " << i;
    }
  }
}

TEST(FarDevice, RandomNumbersAreTheCpus) {
  const auto draw = [](at::Device device) {
    const auto world = lockstep_world(4, device);
    at::manual_seed(11);
    const at::Tensor ones =
        distribute(at::ones({9, 7}).to(device), Layout::parse("[a=2,b=2] S(0),S(1)"), *world);
    return std::vector<at::Tensor>{
        full(at::dropout(ones, 0.4, true)).cpu(), full(at::randn_like(ones)).cpu(),
        full(at::rand_like(ones)).cpu(), full(at::bernoulli(ones * 0.3)).cpu()};
  };
  const auto there = draw(far_device());
  const auto here = draw(at::kCPU);
  for (std::size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(at::equal(there[i], here[i])) << i;
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    up = register_module("up", torch::nn::Linear(6, 10));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({10})));
    down = register_module("down", torch::nn::Linear(10, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return down(at::dropout(at::gelu(norm(up(x))), 0.2, is_training())).square().mean();
  }
  torch::nn::Linear up = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear down = nullptr;
};

/// A run that is sharded over two of four ranks and replicated over the others.
struct Training {
  Training(at::Device d, bool offload, World& w) : device(d), world(w) {
    at::manual_seed(7);
    net = build_sharded(world, mesh, {}, {.shard = {"b"}, .replicate = {"a"}, .offload = offload},
                        [] { return std::make_shared<NetImpl>(); }, {"up", "down"});
    optimizer = std::make_unique<torch::optim::AdamW>(net.module->parameters(),
                                                      torch::optim::AdamWOptions(0.1));
    state.add("model", *net.module).add("optimizer", *optimizer);
  }
  double step(int number) {
    const at::Tensor x = (numbers({8, 6}, number) * 0.1).cos().to(device);
    at::manual_seed(number);  // for dropout
    optimizer->zero_grad();
    const at::Tensor loss =
        net.module->forward(distribute(x, Layout::parse("[a=2,b=2] S(0),S(0)"), world));
    loss.backward();
    clip_grad_norm_(net.module->parameters(), 0.5);
    optimizer->step();
    return full(loss.detach()).item<double>();
  }

  at::Device device;
  World& world;
  Mesh mesh = Mesh::parse("[a=2,b=2]");
  Sharded<std::shared_ptr<NetImpl>> net;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  TrainingState state;
};

NamedTensors trained(at::Device device, bool offload) {
  const auto world = lockstep_world(4, device);
  Training run(device, offload, *world);
  for (int i = 0; i < 3; ++i) run.step(i);
  const at::Device stored = offload ? at::Device(at::kCPU) : device;
  for (const at::Tensor& p : run.net.module->parameters()) {
    for (const at::Tensor& piece : locals(p.detach())) EXPECT_TRUE(is_on(piece, stored));
  }
  return full_state_dict(*run.net.module, {.on_cpu = true});
}

/// To rounding: some ops are made of others there.
void expect_close(const NamedTensors& got, const NamedTensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const at::Tensor difference = (got[i].second.cpu() - want[i].second.cpu()).abs().max();
    EXPECT_LT(difference.item<double>(), 1e-10) << want[i].first;
  }
}

TEST(FarDevice, TrainingGivesTheCpusNumbers) {
  const NamedTensors here = trained(at::kCPU, false);
  expect_close(trained(far_device(), false), here);
  expect_close(trained(far_device(), true), here);
}

TEST(FarDevice, CheckpointsGoFromDeviceToDevice) {
  testing::CheckpointFolder folder;
  const auto far = lockstep_world(4, far_device());
  const auto near = lockstep_world(4);
  Training there(far_device(), false, *far);
  there.step(0);
  const auto before = far_calls();
  save_checkpoint(*far, folder.path(), 1, there.state);
  const auto after = far_calls();
  EXPECT_GT(after.pinned_bytes, before.pinned_bytes);
  EXPECT_EQ(after.waits - before.waits, 4);  // of each rank one, for all of its tensors
  Training here(at::kCPU, false, *near);
  load_checkpoint(*near, folder.path(), here.state);
  here.step(1);
  save_checkpoint(*near, folder.path(), 2, here.state);
  load_checkpoint(*far, folder.path(), there.state);
  EXPECT_NEAR(there.step(2), here.step(2), 1e-10);
  expect_close(full_state_dict(*there.net.module), full_state_dict(*here.net.module));
}

TEST(FarDevice, ManagersCopyBeforeTrainingGoesOn) {
  for (const SaveMode mode : {SaveMode::behind, SaveMode::overlapped}) {
    testing::CheckpointFolder folder;
    const auto world = lockstep_world(4, far_device());
    Training run(far_device(), false, *world);
    run.step(0);
    const NamedTensors then = full_state_dict(*run.net.module, {.on_cpu = true});
    CheckpointManager manager(world, folder.path(), {.mode = mode});
    manager.save(1, run.state.tensors(), run.state.values());
    manager.wait_staged();
    run.step(1);
    manager.wait();
    load_checkpoint(*world, folder.path(), run.state);
    expect_close(full_state_dict(*run.net.module), then);
  }
}

TEST(FarDevice, OrthogonalMatricesAreTheCpus) {
  const auto made = [](at::Device device) {
    const auto world = lockstep_world(4, device);
    const at::Tensor m = distribute((numbers({6, 4}, 1) * 0.3).sin().to(device),
                                    Layout::parse("[a=2,b=2] S(0),S(1)"), *world);
    return full(orthogonalize({m}, {.dtype = at::kDouble})[0]).cpu();
  };
  EXPECT_TRUE(at::equal(made(far_device()), made(at::kCPU)));
}

}  // namespace
}  // namespace intarsia
