#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rules/formulas.h"

namespace intarsia::rules {
namespace {

using torch::jit::Stack;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::array<bool, 3> kAll{true, true, true};

at::Tensor doubles(std::initializer_list<double> values) {
  return at::tensor(std::vector<double>(values), at::kDouble);
}

/// Values that differ, with no order to them.
at::Tensor some(at::IntArrayRef sizes, double factor = 7) {
  return at::arange(at::empty(sizes).numel(), at::kDouble).add(1).mul(factor).sin().reshape(sizes);
}

void expect_close(const at::Tensor& got, const at::Tensor& expected, double tolerance = 1e-10) {
  EXPECT_EQ(got.scalar_type(), expected.scalar_type());
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::allclose(got, expected, tolerance, tolerance, /*equal_nan=*/true))
      << got << "\ninstead of\n"
      << expected;
}

void expect_close(const ThreeTensors& got, const ThreeTensors& expected) {
  expect_close(std::get<0>(got), std::get<0>(expected));
  expect_close(std::get<1>(got), std::get<1>(expected));
  expect_close(std::get<2>(got), std::get<2>(expected));
}

/// What a formula that takes a stack leaves on it.
template <class Function>
std::vector<at::Tensor> left_by(Function function, const char* op, const char* overload,
                                Stack stack) {
  function(c10::Dispatcher::singleton().findSchemaOrThrow(op, overload), stack);
  std::vector<at::Tensor> out;
  for (const c10::IValue& value : stack) out.push_back(value.toTensor());
  return out;
}

TEST(FormulasNorm, VarianceDividesByTheCountLessTheCorrection) {
  const at::Tensor x = doubles({1, 2, 3, 6});  // the mean is 3, the squares 4, 1, 0 and 9
  const auto var = [&](const std::optional<at::Scalar>& correction) {
    return var_formula(x, std::nullopt, correction, false).item<double>();
  };
  EXPECT_DOUBLE_EQ(var(std::nullopt), 14.0 / 3);
  EXPECT_DOUBLE_EQ(var(0), 3.5);
  EXPECT_EQ(var(4), kInfinity);
  EXPECT_EQ(var(5), kInfinity);
  EXPECT_DOUBLE_EQ(std_formula(x, std::nullopt, 0, false).item<double>(), std::sqrt(3.5));
  EXPECT_TRUE(std::isnan(var_formula(doubles({1}), std::nullopt, 1, false).item<double>()));
}

TEST(FormulasNorm, MomentsAlongSomeDimensions) {
  const at::Tensor x = some({2, 3, 4});
  const auto [var, mean] = var_mean_formula(x, at::IntArrayRef{-1, 0}, 1, true);
  expect_close(var, x.var(at::IntArrayRef{0, 2}, true, true));
  expect_close(mean, x.mean(at::IntArrayRef{0, 2}, true));
  const auto [deviation, same] = std_mean_formula(x, at::IntArrayRef{1}, 1, false);
  expect_close(deviation, x.std(at::IntArrayRef{1}, true, false));
  expect_close(same, x.mean(at::IntArrayRef{1}));
  // Those of complex numbers are real; half precision stays so.
  const at::Tensor complex = at::complex(doubles({1, 1}), doubles({1, -1}));
  expect_close(var_formula(complex, std::nullopt, 1, false), at::scalar_tensor(2, at::kDouble));
  EXPECT_EQ(std_formula(x.to(at::kHalf), std::nullopt, 1, false).scalar_type(), at::kHalf);
}

TEST(FormulasNorm, PositionsAreTheFirstOfTheExtreme) {
  const at::Tensor x = doubles({1, 5, 5, 0, 7, 7}).reshape({2, 3});
  EXPECT_TRUE(argmax_formula(x, 1, false).equal(at::tensor({1, 1}, at::kLong)));
  EXPECT_TRUE(argmax_formula(x, -2, true).equal(at::tensor({0, 1, 1}, at::kLong).reshape({1, 3})));
  EXPECT_EQ(argmax_formula(x, std::nullopt, false).item<std::int64_t>(), 4);
  EXPECT_EQ(argmin_formula(x, std::nullopt, false).item<std::int64_t>(), 3);
  EXPECT_EQ(argmax_formula(x, std::nullopt, true).sizes(), (at::IntArrayRef{1, 1}));
  // NaN is more than any number, and less.
  const at::Tensor nan = doubles({1, kNaN, 3, kNaN});
  EXPECT_EQ(argmax_formula(nan, 0, false).item<std::int64_t>(), 1);
  EXPECT_EQ(argmin_formula(nan, std::nullopt, false).item<std::int64_t>(), 1);
}

TEST(FormulasNorm, ExtremesComeWithTheirPositions) {
  const at::Tensor x = doubles({1, 5, 5, 0, 7, 7}).reshape({2, 3});
  const auto [most, where] = max_formula(x, 1, false);
  expect_close(most, doubles({5, 7}));
  EXPECT_TRUE(where.equal(at::tensor({1, 1}, at::kLong)));
  const auto [least, there] = min_formula(x, 0, true);
  expect_close(least, doubles({0, 5, 5}).reshape({1, 3}));
  EXPECT_TRUE(there.equal(at::tensor({1, 0, 0}, at::kLong).reshape({1, 3})));
}

TEST(FormulasNorm, NormsOfNegativeOrder) {
  const at::Tensor x = doubles({1, -2, 4, 1, 1, 1}).reshape({2, 3});
  const std::vector<std::int64_t> rows{1};
  // 1 / (1 + 1/2 + 1/4), and 1 / 3.
  expect_close(left_by(vector_norm_formula, "aten::linalg_vector_norm", "",
                       {x, -1, rows, true, c10::IValue()})[0],
               doubles({1 / 1.75, 1.0 / 3}).reshape({2, 1}));
  expect_close(left_by(vector_norm_formula, "aten::norm", "Scalar", {x, -1})[0],
               at::scalar_tensor(1 / 4.75, at::kDouble));
  EXPECT_EQ(left_by(vector_norm_formula, "aten::norm", "ScalarOpt_dim_dtype",
                    {x, -1, rows, false, at::kFloat})[0]
                .scalar_type(),
            at::kFloat);
}

TEST(FormulasNorm, RenormScalesWhatIsBeyondTheLimit) {
  const at::Tensor x = doubles({3, 4, 0.3, 0.4}).reshape({2, 2});  // norms 5 and 0.5
  expect_close(renorm_formula(x, 2, 0, 1), doubles({0.6, 0.8, 0.3, 0.4}).reshape({2, 2}), 1e-6);
  expect_close(renorm_formula(some({3, 4, 5}), 1, -2, 2), at::renorm(some({3, 4, 5}), 1, -2, 2));
}

TEST(FormulasNorm, LayerNormByHand) {
  // The mean is 2, the variance 1.
  const auto [out, mean, rstd] =
      layer_norm_formula(doubles({1, 3}).reshape({1, 2}), {2}, doubles({2, 1}), doubles({0, 1}), 0);
  expect_close(out, doubles({-2, 2}).reshape({1, 2}));
  expect_close(mean, doubles({2}).reshape({1, 1}));
  expect_close(rstd, doubles({1}).reshape({1, 1}));
}

TEST(FormulasNorm, LayerNormIsThatOfATen) {
  const at::Tensor x = some({2, 3, 4});
  const at::Tensor weight = some({3, 4}, 5);
  const at::Tensor bias = some({3, 4}, 3);
  const auto forward = at::native_layer_norm(x, {3, 4}, weight, bias, 0.1);
  expect_close(layer_norm_formula(x, {3, 4}, weight, bias, 0.1), forward);
  expect_close(layer_norm_formula(x, {4}, std::nullopt, std::nullopt, 0.1),
               at::native_layer_norm(x, {4}, {}, {}, 0.1));
  const auto& [out, mean, rstd] = forward;
  const at::Tensor grad = some({2, 3, 4}, 11);
  const auto backward = [&](const std::array<bool, 3>& mask) {
    return layer_norm_backward_formula(grad, x, {3, 4}, mean, rstd, weight, bias, mask);
  };
  expect_close(backward(kAll),
               at::native_layer_norm_backward(grad, x, {3, 4}, mean, rstd, weight, bias, kAll));
  const auto only_weight = backward({false, true, false});
  EXPECT_FALSE(std::get<0>(only_weight).defined());
  EXPECT_TRUE(std::get<1>(only_weight).defined());
  EXPECT_FALSE(std::get<2>(only_weight).defined());
}

TEST(FormulasNorm, MomentsHaveTheTypeOfTheParameters) {
  const at::Tensor x = some({2, 4}).to(at::kBFloat16);
  const auto mixed = layer_norm_formula(x, {4}, at::ones({4}), std::nullopt, 0.1);
  EXPECT_EQ(std::get<0>(mixed).scalar_type(), at::kBFloat16);
  EXPECT_EQ(std::get<1>(mixed).scalar_type(), at::kFloat);
  const auto alone = layer_norm_formula(x, {4}, std::nullopt, std::nullopt, 0.1);
  EXPECT_EQ(std::get<2>(alone).scalar_type(), at::kBFloat16);
}

TEST(FormulasNorm, GroupNormIsThatOfATen) {
  const at::Tensor x = some({2, 6, 5});
  const at::Tensor weight = some({6}, 5);
  const at::Tensor bias = some({6}, 3);
  const auto forward = at::native_group_norm(x, weight, bias, 2, 6, 5, 3, 0.1);
  expect_close(group_norm_formula(x, weight, bias, 2, 6, 5, 3, 0.1), forward);
  expect_close(group_norm_formula(x, std::nullopt, std::nullopt, 2, 6, 5, 2, 0.1),
               at::native_group_norm(x, {}, {}, 2, 6, 5, 2, 0.1));
  const auto& [out, mean, rstd] = forward;
  const at::Tensor grad = some({2, 6, 5}, 11);
  expect_close(group_norm_backward_formula(grad, x, mean, rstd, weight, 2, 6, 5, 3, kAll),
               at::native_group_norm_backward(grad, x, mean, rstd, weight, 2, 6, 5, 3, kAll));
  const auto only_bias =
      group_norm_backward_formula(grad, x, mean, rstd, weight, 2, 6, 5, 3, {false, false, true});
  EXPECT_FALSE(std::get<0>(only_bias).defined());
  EXPECT_TRUE(std::get<2>(only_bias).defined());
}

TEST(FormulasNorm, BatchNormUpdatesTheRunningMoments) {
  const at::Tensor x = doubles({1, 3, 10, 10}).reshape({2, 2}).t();  // channels 1, 3 and 10, 10
  const at::Tensor mean = doubles({0, 0});
  const at::Tensor var = doubles({1, 1});
  const auto got = left_by(batch_norm_formula, "aten::native_batch_norm", "",
                           {x, c10::IValue(), c10::IValue(), mean, var, true, 0.5, 3.0});
  ASSERT_EQ(got.size(), 3);
  expect_close(got[0], doubles({-0.5, 0.5, 0, 0}).reshape({2, 2}).t());  // by sqrt(1 + 3)
  expect_close(got[1], doubles({2, 10}));
  expect_close(got[2], doubles({0.5, 1 / std::sqrt(3)}));
  expect_close(mean, doubles({1, 5}));
  expect_close(var, doubles({1.5, 0.5}));  // with that of the batch unbiased: 2 and 0
}

TEST(FormulasNorm, BatchNormsThatReturnTheRunningMoments) {
  const at::Tensor x = some({4, 3, 5});
  const at::Tensor w = some({3}, 5);
  const at::Tensor mean = some({3}, 3);
  const at::Tensor var = some({3}, 2).abs();
  at::Tensor mean_after = mean.clone();
  at::Tensor var_after = var.clone();
  const auto expected = at::native_batch_norm(x, w, w, mean_after, var_after, true, 0.1, 0.01);
  const auto updated = left_by(batch_norm_formula, "aten::_batch_norm_with_update_functional", "",
                               {x, w, w, mean, var, 0.1, 0.01});
  ASSERT_EQ(updated.size(), 6);
  expect_close({updated[0], updated[1], updated[2]}, expected);
  EXPECT_EQ(updated[3].numel(), 0);
  expect_close(updated[4], mean_after);
  expect_close(updated[5], var_after);
  expect_close(mean, some({3}, 3));  // which it leaves alone
  const auto evaluated = left_by(batch_norm_formula, "aten::_native_batch_norm_legit_functional",
                                 "", {x, w, w, mean, var, false, 0.1, 0.01});
  ASSERT_EQ(evaluated.size(), 5);
  expect_close(evaluated[0],
               std::get<0>(at::native_batch_norm(x, w, w, mean, var, false, 0.1, 0.01)));
  EXPECT_EQ(evaluated[1].numel(), 0);
  expect_close(evaluated[3], mean);
  expect_close(evaluated[4], var);
}

TEST(FormulasNorm, GradientsOfBatchNorm) {
  const at::Tensor x = some({4, 3, 5});
  const at::Tensor w = some({3}, 5);
  const auto [out, mean, invstd] = at::native_batch_norm(x, w, w, {}, {}, true, 0.1, 0.01);
  const at::Tensor grad = some({4, 3, 5}, 11);
  const auto backward = [&](const std::array<bool, 3>& mask) {
    return left_by(batch_norm_backward_formula, "aten::native_batch_norm_backward", "",
                   {grad, x, w, c10::IValue(), c10::IValue(), mean, invstd, true, 0.01, mask});
  };
  const auto got = backward(kAll);
  expect_close({got[0], got[1], got[2]},
               at::native_batch_norm_backward(grad, x, w, {}, {}, mean, invstd, true, 0.01, kAll));
  const auto only_bias = backward({false, false, true});
  EXPECT_FALSE(only_bias[0].defined());
  EXPECT_FALSE(only_bias[1].defined());
  expect_close(only_bias[2], got[2]);
}

}  // namespace
}  // namespace intarsia::rules
