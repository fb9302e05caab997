// Replicated models beside the same model alone on the whole batch, for tests of `replicate`.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <string>
#include <vector>

#include "intarsia/replicate.h"
#include "tensor/tensors.h"

namespace intarsia::testing {

/// A model with everything that makes data parallel hard. `route`: which of its branches is used.
/// Running means are taken off with the values of the step before, so that they matter.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::uint64_t seed) {
    const auto parameter = [&](const std::string& name, std::vector<std::int64_t> sizes) {
      return register_parameter(name, values(std::move(sizes), seed++) * 0.3);
    };
    first = parameter("first", {7, 5});
    tied = parameter("tied", {5, 5});  // used twice
    branches = {parameter("branch0", {5, 5}), parameter("branch1", {5, 5})};
    idle = parameter("idle", {3, 3});  // used by nobody
    frozen = register_parameter("frozen", values({5}, seed++), false);
    last = parameter("last", {5, 1});
    single = register_parameter("single", values({5}, seed++).to(at::kFloat));  // another dtype
    mean = register_buffer("mean", values({5}, seed++));
    steps = register_buffer("steps", at::zeros({}, at::kLong));
  }

  at::Tensor forward(const at::Tensor& x, int route) {
    at::Tensor h = x.mm(first);
    const at::Tensor before = mean.clone();
    {
      const at::NoGradGuard no_grad;
      mean.mul_(0.9).add_(h.mean(0), 0.1);
      steps.add_(1);
    }
    h = (h - before + frozen).tanh();
    h = h.mm(tied).tanh().mm(tied);
    if (route < 2) h = h.mm(branches[static_cast<std::size_t>(route)]);
    return (h * single).tanh().mm(last);
  }

  at::Tensor first, tied, idle, frozen, last, single, mean, steps;
  std::vector<at::Tensor> branches;
};
TORCH_MODULE(Net);

/// The update by hand: what it writes is what gradients say.
inline void update(torch::nn::Module& model, double rate) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& p : model.parameters()) {
    if (p.grad().defined()) p.sub_(p.grad(), rate);
  }
}

enum class Clearing { to_none, to_zero };
inline void clear_gradients(torch::nn::Module& model, Clearing how) {
  for (at::Tensor& p : model.parameters()) {
    if (how == Clearing::to_none) {
      p.mutable_grad().reset();
    } else if (p.grad().defined()) {
      p.mutable_grad().detach_();  // as torch's optimizers do
      p.mutable_grad().zero_();
    }
  }
}

inline void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what,
                         double tolerance) {
  ASSERT_EQ(got.defined(), want.defined()) << what;
  if (!want.defined()) return;
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  ASSERT_EQ(got.scalar_type(), want.scalar_type()) << what;
  const double apart = (got - want).abs().max().item<double>();
  ASSERT_LE(apart, tolerance * (1 + want.abs().max().item<double>())) << what << '\n'
                                                                      << got << want;
}

/// Gradients, parameters and buffers of two models. What is single precision may differ by that.
inline void expect_same(const torch::nn::Module& got, const torch::nn::Module& want,
                        const std::string& what, double tolerance = 1e-12) {
  const auto theirs = want.named_parameters();
  for (const auto& p : got.named_parameters()) {
    const double t = p.value().scalar_type() == at::kFloat ? 1e-5 : tolerance;
    expect_close(p.value(), theirs[p.key()], what + ", " + p.key(), t);
    expect_close(p.value().grad(), theirs[p.key()].grad(), what + ", gradient of " + p.key(), t);
  }
  const auto buffers = want.named_buffers();
  for (const auto& b : got.named_buffers()) {
    expect_close(b.value(), buffers[b.key()], what + ", " + b.key(), tolerance);
  }
}

/// How `train_beside` trains.
struct Training {
  int steps = 10;
  Clearing clearing = Clearing::to_none;
  /// Batches per step, of which all but the last run within no_sync.
  int accumulated = 1;
  /// Which branch a rank takes in a step; 2: none of them.
  std::function<int(std::int64_t rank, int step)> route = [](std::int64_t, int) { return 0; };
  ReplicateOptions options = {.buffers = BufferSync::averaged};
};

/// Trains one replica on every rank, and beside it a model that sees the whole batch alone. Every
/// rank compares all gradients, parameters and buffers of each step.
inline void train_beside(World& world, const Training& training) {
  const std::int64_t n = world.size();
  const Mesh mesh({{"dp", n}});
  Net ours(static_cast<std::uint64_t>(world.rank()) * 100);  // the first rank's values win
  Net alone(0);
  const auto replica = replicate(*ours, world, mesh, "dp", training.options);
  expect_same(*ours, *alone, "at the start", 0);
  constexpr std::int64_t kRows = 4;
  std::vector<at::Tensor> means(static_cast<std::size_t>(n), alone->mean.clone());
  for (int step = 0; step < training.steps; ++step) {
    clear_gradients(*ours, training.clearing);
    clear_gradients(*alone, training.clearing);
    for (int part = 0; part < training.accumulated; ++part) {
      const auto seed = static_cast<std::uint64_t>(1000 + step * 10 + part);
      const at::Tensor batch = values({kRows * n, 7}, seed);
      const auto rows = [&](std::int64_t r) { return batch.narrow(0, r * kRows, kRows); };
      const at::Tensor loss =
          ours->forward(rows(world.rank()), training.route(world.rank(), step)).square().mean();
      if (part + 1 < training.accumulated) {
        const auto local = replica->no_sync();
        loss.backward();
      } else {
        loss.backward();
      }
      // Alone: the part of each rank with that rank's running mean, and then the average of all.
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (std::int64_t r = 0; r < n; ++r) {
        at::Tensor& mean = means[static_cast<std::size_t>(r)];
        alone->mean.copy_(mean);
        sum = sum + alone->forward(rows(r), training.route(r, step)).square().mean();
        mean = alone->mean.clone();
      }
      alone->steps.sub_(n - 1);
      (sum / n).backward();
    }
    alone->mean.copy_(at::stack(means).mean(0));
    means.assign(static_cast<std::size_t>(n), alone->mean.clone());
    expect_same(*ours, *alone, "step " + std::to_string(step));
    if (::testing::Test::HasFatalFailure()) throw std::runtime_error("the models differ");
    update(*ours, 0.1);
    update(*alone, 0.1);
    const at::NoGradGuard no_grad;
    alone->single.copy_(ours->single);  // or its rounding would show everywhere in the next step
  }
  EXPECT_EQ(replica->counters().rounds, static_cast<std::uint64_t>(training.steps));
}

}  // namespace intarsia::testing
