// Simulated worlds: no values, no other ranks.
#include "intarsia/simulate.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/collectives.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/memory.h"
#include "intarsia/predict.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

TEST(Simulate, PlaysOneRankOfManyWithoutValues) {
  const auto world = simulate({.size = 16384, .rank = 16383});
  EXPECT_EQ(world->rank(), 16383);
  const Mesh mesh = Mesh::parse("[dp=2048,tp=8]");
  const at::Tensor x = randn({4096, 64}, Layout::parse("S(0),S(1)", mesh), *world);
  EXPECT_TRUE(x.device().is_cpu());
  EXPECT_TRUE(local(x).is_meta());
  EXPECT_EQ(local(x).sizes(), at::IntArrayRef({2, 8}));
  const at::Tensor whole = redistribute(x, Layout::replicated(mesh));
  EXPECT_EQ(local(whole).sizes(), x.sizes());
  EXPECT_EQ(bill(*world).bytes() > 0, true);
  testing::expect_error<c10::ValueError>([&] { x.sum().item(); },
                                         {"and a simulated world has none"});
  world->close();
}

TEST(Simulate, RunningSumsAlongAShardedDimension) {
  const auto world = simulate({.size = 4});
  const Mesh mesh = Mesh::parse("[dp=4]");
  const at::Tensor x = randn({6, 3}, Layout::parse("S(0)", mesh), *world);
  EXPECT_EQ(local(x.cumsum(0)).sizes(), at::IntArrayRef({2, 3}));
  world->close();
}

TEST(Simulate, OpsWithoutAMetaKernelInThisProcessHaveTheirSizesByRule) {
  const auto world = simulate({.size = 8});
  const Mesh mesh = Mesh::parse("[dp=8]");
  const at::Tensor x =
      randn({16, 6}, Layout::parse("S(0)", mesh), *world, at::kBFloat16).set_requires_grad(true);
  const at::Tensor weight = ones({6}, Layout::replicated(mesh), *world, at::kBFloat16);
  const at::Tensor h = at::layer_norm(at::relu(x), {6}, weight, weight);
  EXPECT_EQ(h.scalar_type(), at::kBFloat16);
  EXPECT_EQ(local(h.detach()).sizes(), at::IntArrayRef({2, 6}));
  h.sum().backward();
  EXPECT_EQ(local(x.grad()).sizes(), at::IntArrayRef({2, 6}));
  const at::Tensor q = randn({8, 2, 4, 16}, Layout::parse("S(0)", mesh), *world, at::kBFloat16);
  const auto attention = at::_scaled_dot_product_flash_attention_for_cpu(q, q, q);
  EXPECT_EQ(std::get<1>(attention).scalar_type(), at::kFloat);
  world->close();
}

TEST(Simulate, PlainTensorsAreBesideDistributedOnes) {
  const auto world = simulate({.size = 4});
  const Mesh mesh = Mesh::parse("[dp=4]");
  const at::Tensor x = zeros({8, 3}, Layout::parse("S(0)", mesh), *world);
  const at::Tensor y = x * at::ones({3}) + at::arange(24).view({8, 3});
  EXPECT_EQ(local(y).sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(local(distribute(at::ones({8, 3}), Layout::parse("S(0)", mesh), *world)).sizes(),
            at::IntArrayRef({2, 3}));
  world->close();
}

TEST(Simulate, CollectivesRefuseTensorsWithValues) {
  const auto world = simulate({.size = 4});
  const Comm everyone = world->everyone();
  EXPECT_EQ(all_gather(everyone, {at::empty({2}, at::kMeta)}, 0).tensor().sizes(),
            at::IntArrayRef({8}));
  EXPECT_EQ(world->ledger().totals().calls, 1U);
  EXPECT_EQ(world->ledger().totals().bytes, 8U);
  testing::expect_error<WorldError>([&] { all_gather(everyone, {at::ones({2})}, 0); },
                                    {"a simulated world sends nothing"});
  world->close();
}

TEST(Simulate, RefusesWorldsThatCannotBe) {
  testing::expect_error<ValueError>([] { simulate({.size = 4, .rank = 4}); },
                                    {"rank 4 is not in a world of size 4"});
  testing::expect_error<ValueError>(
      [] { simulate({.backend = "mpi"}); },
      {"the ways of 'mpi' are not known; known are gloo, nccl and shm"});
}

TEST(Simulate, BillIsThatOfRealRanks) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  const auto step = [&](World& world) {
    const at::Tensor x = randn({8, 6}, Layout::parse("S(0),R", mesh), world);
    const at::Tensor up =
        randn({12, 6}, Layout::parse("S(1),S(0)", mesh), world).set_requires_grad(true);
    const at::Tensor down =
        randn({6, 12}, Layout::parse("R,S(1)", mesh), world).set_requires_grad(true);
    at::linear(at::gelu(at::linear(x, up)), down).square().mean().backward();
    return KeptTensors{.parameters = {up, down}};
  };
  std::vector<std::string> real(4);
  run_in_process(4, [&](World& world) {
    step(world);
    real[static_cast<std::size_t>(world.rank())] = bill(world).to_string();
  });
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const Prediction p = predict({.mesh = mesh, .rank = rank}, step);
    EXPECT_EQ(p.bill.to_string(), real[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(p.parameters, (12 * 6 / 4 + 6 * 12 / 2) * 4);
    EXPECT_EQ(p.gradients, p.parameters);
    EXPECT_EQ(p.activations(), p.peak - p.parameters - p.gradients);
  }
}

TEST(MemoryMeter, CountsWhatTensorsHoldAndAtMost) {
  at::Tensor old = at::ones({77});
  MemoryMeter meter;
  at::Tensor x = at::ones({1000});
  { const at::Tensor y = x.neg(); }
  EXPECT_EQ(meter.live(), 4000);
  EXPECT_EQ(meter.peak(), 8000);
  meter.reset();
  old.reset();
  EXPECT_EQ(meter.live(), 4000);
  EXPECT_EQ(meter.peak(), 4000);
  x.resize_({2000});
  EXPECT_EQ(meter.live(), 8000);
  x.reset();
  EXPECT_EQ(meter.live(), 0);
  testing::expect_error<UnsupportedError>([] { const MemoryMeter meter({c10::DeviceType::CUDA}); },
                                          {"cannot count memory of cuda"});
}

}  // namespace
}  // namespace intarsia
