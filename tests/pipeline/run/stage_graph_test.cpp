#include "pipeline/run/stage_graph.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>

namespace intarsia::pipeline {
namespace {

using Compute = std::function<Tensors(const Tensors& inputs, const Tensors& weights)>;

at::Tensor random(at::IntArrayRef sizes, bool trains) {
  return at::randn(sizes, at::kDouble).requires_grad_(trains);
}

Tensors copies(const Tensors& list) {
  Tensors out;
  for (const at::Tensor& t : list) {
    out.push_back(t.detach().clone().requires_grad_(t.requires_grad()));
  }
  return out;
}

void expect_same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.defined(), want.defined()) << what;
  if (want.defined()) EXPECT_TRUE(at::equal(got, want)) << what << "\n" << got << "\n" << want;
}

/// The halves together give exactly the gradients of one backward, and run each hook once.
void expect_halves_are_a_backward(const Compute& compute, const Tensors& inputs,
                                  const Tensors& weights) {
  at::manual_seed(3);
  const Tensors x1 = copies(inputs);
  const Tensors w1 = copies(weights);
  const Tensors y1 = compute(x1, w1);
  Tensors gradients;
  for (const at::Tensor& y : y1) gradients.push_back(y.defined() ? at::randn_like(y) : y);
  StageGraph one(x1, y1);
  const Tensors of_inputs = one.backward(gradients);

  const Tensors x2 = copies(inputs);
  const Tensors w2 = copies(weights);
  std::vector<int> hooks(w2.size(), 0);
  for (std::size_t i = 0; i < w2.size(); ++i) {
    if (w2[i].requires_grad()) w2[i].register_hook([&, i](const at::Tensor&) { ++hooks[i]; });
  }
  StageGraph two(x2, compute(x2, w2));
  const Tensors first = two.input_gradients(gradients);
  for (const at::Tensor& w : w2) EXPECT_FALSE(w.grad().defined());
  two.weight_gradients();
  ASSERT_EQ(first.size(), of_inputs.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    expect_same(first[i], of_inputs[i], "input " + std::to_string(i));
  }
  for (std::size_t i = 0; i < w2.size(); ++i) {
    expect_same(w2[i].grad(), w1[i].grad(), "weight " + std::to_string(i));
    EXPECT_EQ(hooks[i], w1[i].grad().defined() ? 1 : 0) << "weight " << i;
  }
}

TEST(StageGraph, ProductsInARow) {
  // Each product leads to the next without anything between.
  expect_halves_are_a_backward(
      [](const Tensors& x, const Tensors& w) -> Tensors {
        return {at::mm(at::mm(at::mm(x[0], w[0]), w[1]), w[2])};
      },
      {random({3, 4}, true)}, {random({4, 4}, true), random({4, 5}, true), random({5, 2}, true)});
}

TEST(StageGraph, AWeightThatIsUsedSeveralTimesCountsOnce) {
  expect_halves_are_a_backward(
      [](const Tensors& x, const Tensors& w) -> Tensors {
        at::Tensor y = at::addmm(w[1], x[0], w[0]);
        y = at::addmm(w[1], y.tanh(), w[0]) * w[1];
        return {at::mm(y, w[0].t()) + w[0].sum()};
      },
      {random({3, 4}, true)}, {random({4, 4}, true), random({4}, true)});
}

TEST(StageGraph, SeveralInputsAndOutputs) {
  expect_halves_are_a_backward(
      [](const Tensors& x, const Tensors& w) -> Tensors {
        const at::Tensor h = at::mm(x[0], w[0]);
        return {h.sin() * x[1], at::Tensor(), w[1] * 2, x[2].relu() + h.sum()};
      },
      {random({2, 3}, true), random({2, 3}, false), random({4}, true)},
      {random({3, 3}, true), random({2}, true)});
}

TEST(StageGraph, InputsThatTakeNoGradient) {
  expect_halves_are_a_backward(
      [](const Tensors& x, const Tensors& w) -> Tensors { return {at::mm(x[0], w[0]).relu()}; },
      {random({2, 3}, false)}, {random({3, 3}, true)});
}

TEST(StageGraph, NothingToTrain) {
  expect_halves_are_a_backward(
      [](const Tensors& x, const Tensors& w) -> Tensors { return {(x[0] * w[0]).exp()}; },
      {random({3}, true)}, {random({3}, false)});
}

TEST(StageGraph, AnInputThatIsPassedOn) {
  expect_halves_are_a_backward(
      [](const Tensors& x, const Tensors& w) -> Tensors {
        return {x[0], x[0] * w[0]};
      },
      {random({3}, true)}, {random({3}, true)});
}

TEST(StageGraph, AnInputThatNothingDependsOn) {
  expect_halves_are_a_backward(
      [](const Tensors& /*x*/, const Tensors& w) -> Tensors { return {w[0].exp()}; },
      {random({3}, true)}, {random({3}, true)});
}

TEST(StageGraph, WritesInPlaceAndViews) {
  expect_halves_are_a_backward(
      [](const Tensors& x, const Tensors& w) -> Tensors {
        at::Tensor y = at::mm(x[0], w[0]);
        y.select(0, 1).mul_(w[1]);
        y.narrow(1, 0, 2).copy_(at::mm(x[0], w[2]));
        return {y.view({-1}).relu_()};
      },
      {random({3, 4}, true)}, {random({4, 4}, true), random({4}, true), random({4, 2}, true)});
}

/// A function of users, which computes all gradients whether they are asked for or not.
struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1], gradients[0] * saved[0]};
  }
};

TEST(StageGraph, FunctionsOfUsers) {
  expect_halves_are_a_backward(
      [](const Tensors& x, const Tensors& w) -> Tensors {
        return {Scaled::apply(Scaled::apply(x[0], w[0]).sin(), w[0])};
      },
      {random({3}, true)}, {random({3}, true)});
}

TEST(StageGraph, RandomGraphs) {
  for (int seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    at::manual_seed(static_cast<std::uint64_t>(seed));
    const auto draw = [](std::int64_t end) { return at::randint(end, {1}).item<std::int64_t>(); };
    const std::int64_t inputs = 1 + draw(3);
    const std::int64_t weights = 1 + draw(3);
    Tensors x;
    Tensors w;
    for (std::int64_t i = 0; i < inputs; ++i) x.push_back(random({3, 3}, draw(4) > 0));
    for (std::int64_t i = 0; i < weights; ++i) w.push_back(random({3, 3}, draw(4) > 0));
    struct Step {
      std::int64_t op, a, b;
    };
    std::vector<Step> steps;
    for (std::int64_t i = 0; i < 8; ++i) {
      steps.push_back({draw(5), draw(inputs + weights + i), draw(inputs + weights + i)});
    }
    expect_halves_are_a_backward(
        [&](const Tensors& x, const Tensors& w) -> Tensors {
          Tensors made = x;
          made.insert(made.end(), w.begin(), w.end());
          for (const Step& s : steps) {
            const at::Tensor& a = made[static_cast<std::size_t>(s.a)];
            const at::Tensor& b = made[static_cast<std::size_t>(s.b)];
            made.push_back(s.op == 0   ? at::mm(a, b)
                           : s.op == 1 ? a * b
                           : s.op == 2 ? at::addmm(a, b, a)
                           : s.op == 3 ? a.tanh()
                                       : a + b.t());
          }
          return {made.back(), made[made.size() - 2]};
        },
        x, w);
  }
}

TEST(StageGraph, TheFirstHalfGivesUpWhatOnlyItNeeds) {
  const at::Tensor w = random({4, 4}, true);
  const at::Tensor x = random({4, 4}, true);
  at::Tensor wide = at::mm(x, w);
  const at::Tensor big = wide.exp();  // its result is needed by the first half alone
  const auto storage = big.storage().getWeakStorageImpl();
  const auto alive = [&] { return storage.use_count() > 0; };
  at::Tensor y = big.sum().view({1});
  StageGraph graph({x}, {y});
  wide.reset();
  y.reset();
  const_cast<at::Tensor&>(big).reset();
  EXPECT_TRUE(alive());
  graph.input_gradients({at::ones({1}, at::kDouble)});
  EXPECT_FALSE(alive());
  graph.weight_gradients();
  EXPECT_TRUE(w.grad().defined());
}

}  // namespace
}  // namespace intarsia::pipeline
