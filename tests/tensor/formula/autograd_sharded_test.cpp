// Embedding and cross entropy with a sharded vocabulary: ATen's ops on distributed tensors.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "intarsia/communication.h"
#include "intarsia/lockstep.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_whole;
using testing::values;
using Numbers = std::vector<double>;

Numbers numbers(const Tensor& t) {
  const Tensor flat = full(t.detach()).to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

struct Two {
  Lockstep lockstep{"[a=2]"};
  World& world = lockstep.world();
  Layout layout(const char* text) const { return Layout::parse(text, lockstep.mesh()); }
  Tensor in(const char* text, const Tensor& full) const {
    return distribute(full, layout(text), world);
  }
  Tensor leaf(const char* text, const Tensor& full) const {
    return in(text, full).set_requires_grad(true);
  }
};

Tensor longs(const std::vector<std::int64_t>& all) { return at::tensor(all, at::kLong); }

TEST(AutogradSharded, TheGradientOfATableHasItsRowsAndSendsNothing) {
  const Two two;
  const Tensor table = two.leaf("S(0)", at::arange(10., at::kDouble).view({5, 2}));
  const Tensor rows = at::embedding(table, two.in("R", longs({4, 0, 4})));
  EXPECT_EQ(numbers(rows), (Numbers{8, 9, 0, 1, 8, 9}));
  const Tensor weights = two.in("R", at::tensor({1.0, 1.0, 2.0, 2.0, 3.0, 3.0}).view({3, 2}));
  const Tensor loss = (redistribute(rows, two.layout("R")) * weights).sum();
  const Budget budget(two.world);
  loss.backward();
  budget.expect("");
  EXPECT_EQ(layout_of(table.grad()), two.layout("S(0)"));
  EXPECT_EQ(numbers(table.grad()), (Numbers{2, 2, 0, 0, 0, 0, 0, 0, 4, 4}));
}

TEST(AutogradSharded, ThePaddingRowHasNoGradient) {
  const Two two;
  for (const char* layout : {"S(0)", "SS(0,2)", "S(1)", "R"}) {
    const Tensor table = two.leaf(layout, at::ones({4, 2}, at::kDouble));
    at::embedding(table, two.in("R", longs({1, 3, 1})), /*padding_idx=*/1).sum().backward();
    EXPECT_EQ(numbers(table.grad()), (Numbers{0, 0, 0, 0, 0, 0, 1, 1})) << layout;
  }
}

TEST(AutogradSharded, GradientsByFrequencyAreAtens) {
  const Two two;
  const Tensor table = two.leaf("S(0)", at::ones({4, 1}, at::kDouble));
  const Tensor rows = at::embedding(table, two.in("R", longs({3, 0, 3})), -1,
                                    /*scale_grad_by_freq=*/true);
  (rows * at::tensor({5.0, 5.0, 7.0}).view({3, 1})).sum().backward();
  EXPECT_EQ(numbers(table.grad()), (Numbers{5, 0, 0, 6}));
}

TEST(AutogradSharded, ATableMayBeWrittenBeforeBackward) {
  const Two two;
  Tensor table = two.leaf("S(0)", at::ones({4, 1}, at::kDouble));
  const Tensor loss = at::embedding(table, two.in("R", longs({2}))).sum();
  {
    const at::NoGradGuard guard;
    table.mul_(2);
  }
  loss.backward();
  EXPECT_EQ(numbers(table.grad()), (Numbers{0, 0, 1, 0}));
}

TEST(AutogradSharded, TheGradientOfCrossEntropyIsNotReduced) {
  const Two two;
  const Tensor logits = two.leaf("S(1)", at::zeros({2, 4}, at::kDouble));
  const Tensor loss = at::cross_entropy_loss(logits, two.in("R", longs({3, 0})));
  EXPECT_NEAR(numbers(loss)[0], std::log(4), 1e-12);
  const Budget budget(two.world);
  loss.backward();
  budget.expect("");
  EXPECT_EQ(layout_of(logits.grad()), two.layout("S(1)"));
  // Each class has a probability of 1/4, and each sample half of the weight.
  EXPECT_EQ(numbers(logits.grad()),
            (Numbers{0.125, 0.125, 0.125, -0.375, -0.375, 0.125, 0.125, 0.125}));
}

TEST(AutogradSharded, SamplesThatAreIgnoredHaveNoGradient) {
  const Two two;
  const Tensor logits = two.leaf("S(1)", at::zeros({3, 2}, at::kDouble));
  const Tensor loss = at::cross_entropy_loss(logits, two.in("R", longs({1, -7, 0})), {},
                                             at::Reduction::Mean, /*ignore_index=*/-7);
  EXPECT_NEAR(numbers(loss)[0], std::log(2), 1e-12);
  loss.backward();
  EXPECT_EQ(numbers(logits.grad()), (Numbers{0.25, -0.25, 0, 0, -0.25, 0.25}));
}

/// Loss and gradient of logits in this layout, beside those of plain tensors.
void expect_like_plain(const Two& two, const char* layout, const Tensor& logits,
                       const Tensor& target, const std::optional<Tensor>& weight,
                       std::int64_t reduction, double smoothing = 0) {
  const auto run = [&](const Tensor& leaf) {
    const std::int64_t ignored = target.is_floating_point() ? -100 : 1;
    const Tensor loss = at::cross_entropy_loss(leaf, target, weight, reduction, ignored, smoothing);
    (loss * 3).sum().backward();
    return loss;
  };
  const Tensor plain = logits.clone().set_requires_grad(true);
  const Tensor ours = two.leaf(layout, logits);
  const Tensor want = run(plain);
  expect_whole(run(ours), want, layout);
  expect_whole(ours.grad(), plain.grad(), layout);
}

TEST(AutogradSharded, WeightsReductionsAndImagesAreThoseOfAten) {
  const Two two;
  const Tensor weight = at::tensor({0.5, 1.0, 2.0, 0.25, 3.0});
  const Tensor target = longs({4, 1, 0});
  for (const std::int64_t reduction : {0, 1, 2}) {
    expect_like_plain(two, "S(1)", values({3, 5}, 1), target, weight, reduction);
    expect_like_plain(two, "SS(1,2)", values({3, 5}, 1), target, {}, reduction);
  }
  const Tensor pixels = longs({4, 1, 0, 2, 2, 3}).view({1, 3, 2});
  expect_like_plain(two, "S(1)", values({1, 5, 3, 2}, 1), pixels, weight, 1);
}

TEST(AutogradSharded, OtherTargetsAndLayoutsGoAtensWay) {
  const Two two;
  const Tensor target = longs({4, 1, 0});
  expect_like_plain(two, "S(0)", values({3, 5}, 1), target, {}, 1);
  expect_like_plain(two, "S(1)", values({3, 5}, 1), target, {}, 1, /*smoothing=*/0.1);
  expect_like_plain(two, "S(1)", values({3, 5}, 1), values({3, 5}, 2).softmax(1), {}, 1);
  expect_like_plain(two, "S(1)", values({2, 5, 3}, 1), longs({4, 1, 0, 2, 2, 3}).view({2, 3}), {},
                    1);
}

TEST(AutogradSharded, CrossEntropyCanBeDifferentiatedAgain) {
  const Two two;
  const auto twice = [](const Tensor& leaf) {
    const Tensor loss = at::cross_entropy_loss(leaf, longs({4, 2, 0}));
    const Tensor first = torch::autograd::grad({loss}, {leaf}, {}, std::nullopt, true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {leaf})[0];
  };
  const Tensor logits = values({3, 5}, 1);
  const Tensor want = twice(logits.clone().set_requires_grad(true));
  expect_whole(twice(two.leaf("S(1)", logits)), want, "second derivative");
}

}  // namespace
}  // namespace intarsia
