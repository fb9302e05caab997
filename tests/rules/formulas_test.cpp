#include "rules/formulas.h"

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace intarsia::rules {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kIgnored = -100;

at::Tensor doubles(std::initializer_list<double> values) {
  return at::tensor(std::vector<double>(values), at::kDouble);
}

at::Tensor classes(std::initializer_list<std::int64_t> values) {
  return at::tensor(std::vector<std::int64_t>(values), at::kLong);
}

/// Values that differ, with no order to them.
at::Tensor some(at::IntArrayRef sizes) {
  return at::arange(at::empty(sizes).numel(), at::kDouble).add(1).mul(7).sin().reshape(sizes);
}

void expect_close(const at::Tensor& got, const at::Tensor& expected) {
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(got, expected, 1e-12, 1e-12)) << got << "\ninstead of\n" << expected;
}

TEST(Formulas, HalfPrecisionIsAddedUpInSingle) {
  EXPECT_EQ(wide(at::kHalf), at::kFloat);
  EXPECT_EQ(wide(at::kBFloat16), at::kFloat);
  EXPECT_EQ(wide(at::kDouble), at::kDouble);
  EXPECT_EQ(wide(at::kLong), at::kLong);
  EXPECT_EQ(widened(at::zeros({2}, at::kHalf)).scalar_type(), at::kFloat);
}

TEST(Formulas, SoftmaxDividesByTheSum) {
  const double log3 = std::log(3);
  expect_close(softmax_formula(doubles({0, log3}), 0, false), doubles({0.25, 0.75}));
  expect_close(softmax_formula(doubles({1000, 1000 + log3}), 0, false), doubles({0.25, 0.75}));
  expect_close(log_softmax_formula(doubles({1000, 1000}), 0, false),
               doubles({-std::log(2), -std::log(2)}));
  expect_close(softmax_formula(some({3, 4, 5}), 1, false), at::softmax(some({3, 4, 5}), 1));
  expect_close(log_softmax_formula(some({3, 4, 5}), -1, false),
               at::log_softmax(some({3, 4, 5}), -1));
  const at::Tensor half = at::zeros({4}, at::kHalf);
  EXPECT_EQ(softmax_formula(half, 0, false).scalar_type(), at::kHalf);
  EXPECT_EQ(softmax_formula(half, 0, true).scalar_type(), at::kFloat);
  EXPECT_EQ(log_softmax_formula(half, 0, false).scalar_type(), at::kHalf);
  EXPECT_EQ(log_softmax_formula(half, 0, true).scalar_type(), at::kFloat);
}

TEST(Formulas, SafeSoftmaxOfAMaskedRowIsZero) {
  const at::Tensor x = doubles({0, -kInfinity, -kInfinity, -kInfinity}).reshape({2, 2});
  expect_close(safe_softmax_formula(x, 1, std::nullopt), doubles({1, 0, 0, 0}).reshape({2, 2}));
  EXPECT_EQ(safe_softmax_formula(x, 1, at::kHalf).scalar_type(), at::kHalf);
}

TEST(Formulas, GradientsOfSoftmax) {
  const at::Tensor y = doubles({0.25, 0.75});
  const at::Tensor grad = doubles({1, 0});
  expect_close(softmax_backward_formula(grad, y, 0, at::kDouble), doubles({0.1875, -0.1875}));
  expect_close(log_softmax_backward_formula(grad, y.log(), 0, at::kDouble), doubles({0.75, -0.75}));
  EXPECT_EQ(softmax_backward_formula(grad, y, 0, at::kHalf).scalar_type(), at::kHalf);
  EXPECT_EQ(log_softmax_backward_formula(grad, y, 0, at::kHalf).scalar_type(), at::kHalf);
}

TEST(Formulas, LogsumexpOfInfiniteValues) {
  expect_close(logsumexp_formula(doubles({1000, 1000}), {0}, false),
               at::scalar_tensor(1000 + std::log(2), at::kDouble));
  const at::Tensor rows =
      doubles({0, kInfinity, -kInfinity, -kInfinity, 0, -kInfinity}).reshape({3, 2});
  expect_close(logsumexp_formula(rows, {1}, true),
               doubles({kInfinity, -kInfinity, 0}).reshape({3, 1}));
  expect_close(logsumexp_formula(some({2, 3, 4}), {0, 2}, false),
               at::logsumexp(some({2, 3, 4}), {0, 2}));
  EXPECT_EQ(logsumexp_formula(at::zeros({3}, at::kLong), {0}, false).scalar_type(), at::kFloat);
}

TEST(Formulas, IgnoredTargetsHaveNoWeight) {
  const at::Tensor target = classes({1, kIgnored, 0});
  const Targets weighted(target, doubles({2, 3}), kIgnored, at::kDouble);
  EXPECT_TRUE(weighted.classes.equal(classes({1, 0, 0})));
  EXPECT_TRUE(weighted.ignored.equal(at::tensor({0, 1, 0}).to(at::kBool)));
  expect_close(weighted.weights, doubles({3, 0, 2}));
  const Targets alike(target, std::nullopt, kIgnored, at::kDouble);
  expect_close(alike.weights, doubles({1, 0, 1}));
  const at::Tensor one = at::ones({}, at::kDouble);
  expect_close(weighted.gradients(one, at::Reduction::Mean, one * 5), doubles({0.6, 0, 0.4}));
  expect_close(weighted.gradients(one, at::Reduction::Sum, one * 5), doubles({3, 0, 2}));
  const Targets none(classes({kIgnored}), std::nullopt, kIgnored, at::kDouble);
  expect_close(none.gradients(one, at::Reduction::Mean, one * 0), doubles({0}));
}

TEST(Formulas, LossesOverClasses) {
  const at::Tensor scores = doubles({-1, -2, -3, -4, -5, -6}).reshape({3, 2});
  const at::Tensor target = classes({1, kIgnored, 0});
  const at::Tensor weight = doubles({2, 3});
  const auto loss = [&](std::int64_t reduction) {
    return nll_loss_formula(scores, target, weight, reduction, kIgnored);
  };
  const at::Tensor five = at::scalar_tensor(5, at::kDouble);
  expect_close(std::get<0>(loss(at::Reduction::None)), doubles({6, 0, 10}));
  expect_close(std::get<1>(loss(at::Reduction::None)), five * 0);
  expect_close(std::get<0>(loss(at::Reduction::Sum)), five * 3.2);
  expect_close(std::get<0>(loss(at::Reduction::Mean)), five * 3.2 / 5);
  expect_close(std::get<1>(loss(at::Reduction::Mean)), five);
  // The gradient is -weight / 5 where the class is.
  expect_close(nll_loss_backward_formula(at::ones({}, at::kDouble), scores, target, weight,
                                         at::Reduction::Mean, kIgnored, five),
               doubles({0, -0.6, 0, 0, -0.4, 0}).reshape({3, 2}));
}

TEST(Formulas, LossesOfOneSampleAndOfImages) {
  const auto [loss, total] =
      nll_loss_formula(doubles({-1, -2, -3}), at::scalar_tensor(2, at::kLong), std::nullopt,
                       at::Reduction::Mean, kIgnored);
  expect_close(loss, at::scalar_tensor(3, at::kDouble));
  expect_close(total, at::scalar_tensor(1, at::kDouble));
  const at::Tensor scores = some({2, 3, 2, 2});
  const at::Tensor target = classes({0, 1, 2, 0, 2, kIgnored, 1, 1}).reshape({2, 2, 2});
  expect_close(
      std::get<0>(nll_loss_formula(scores, target, std::nullopt, at::Reduction::None, kIgnored)),
      at::nll_loss2d(scores, target, {}, at::Reduction::None, kIgnored));
  const at::Tensor grad = some({2, 2, 2});
  expect_close(nll_loss_backward_formula(grad, scores, target, std::nullopt, at::Reduction::None,
                                         kIgnored, at::zeros({}, at::kDouble)),
               at::nll_loss2d_backward(grad, scores, target, {}, at::Reduction::None, kIgnored,
                                       at::zeros({}, at::kDouble)));
}

}  // namespace
}  // namespace intarsia::rules
