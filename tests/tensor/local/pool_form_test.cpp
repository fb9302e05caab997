#include "tensor/local/pool_form.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "error_text.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::FramedCall;
using testing::Ints;
using testing::laid_out;
using testing::Numbers;
using testing::numbers_of;
using testing::question_of;
using testing::row_of;
using testing::run_on_pieces;
using testing::unmoved;
using Rows = std::vector<Numbers>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// An image of one column.
at::Tensor column(const Numbers& values) {
  return row_of(values).view({1, 1, static_cast<std::int64_t>(values.size()), 1});
}

// Windows of three rows, one on either side.
FramedCall max_pool(const at::Tensor& x) {
  return FramedCall("aten::max_pool2d_with_indices", "",
                    {x, Ints{3, 1}, Ints{1, 1}, Ints{1, 0}, Ints{1, 1}, false});
}

FramedCall max_pool_backward(const at::Tensor& grad, const at::Tensor& x,
                             const at::Tensor& indices) {
  return FramedCall("aten::max_pool2d_with_indices_backward", "",
                    {grad, x, Ints{3, 1}, Ints{1, 1}, Ints{1, 0}, Ints{1, 1}, false, indices});
}

FramedCall avg_pool(const at::Tensor& x, bool count_padding, c10::IValue divisor = {}) {
  return FramedCall(
      "aten::avg_pool2d", "",
      {x, Ints{3, 1}, Ints{1, 1}, Ints{1, 0}, false, count_padding, std::move(divisor)});
}

/// The decision for results of these sizes.
Decision form_of(const FramedCall& call, const Shape& sizes, std::string_view layout = "S(2)") {
  Decision d = unmoved(call.frame, {layout, layout});
  set_pool(call.frame, question_of(call.frame, d), {sizes, sizes}, d);
  return d;
}

std::vector<std::vector<at::Tensor>> pooled(const FramedCall& call, const Shape& sizes) {
  return run_on_pieces(call.frame, form_of(call, sizes));
}

std::vector<std::vector<at::Tensor>> gradients(const FramedCall& call) {
  Decision d = unmoved(call.frame, {"S(2)"});
  set_pool_backward(call.frame, question_of(call.frame, d), d);
  return run_on_pieces(call.frame, d);
}

TEST(PoolForm, MaximaAndTheirPlacesInTheFullPlane) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = row_of({3, 1, 4, 8, 5, 9, 2, 6}).view({1, 1, 4, 2});
  const FramedCall call = max_pool(laid_out(x, "S(2)", lockstep));
  const auto results = pooled(call, {1, 1, 4, 2});
  EXPECT_EQ(numbers_of(results[0]), (Rows{{4, 8, 5, 9}, {5, 9, 5, 9}}));
  EXPECT_EQ(numbers_of(results[1]), (Rows{{2, 3, 4, 5}, {4, 5, 4, 5}}));
}

TEST(PoolForm, PlacesInAPlaneWhoseRowsAreSharded) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x =
      laid_out(row_of({3, 1, 4, 8, 5, 9, 2, 6}).view({1, 1, 2, 4}), "S(3)", lockstep);
  const Ints kernel{1, 3};
  const Ints padding{0, 1};
  const Ints one{1, 1};
  const FramedCall call("aten::max_pool2d_with_indices", "", {x, kernel, one, padding, one, false});
  const auto results = run_on_pieces(call.frame, form_of(call, {1, 1, 2, 4}, "S(3)"));
  EXPECT_EQ(numbers_of(results[0]), (Rows{{3, 4, 9, 9}, {8, 8, 9, 6}}));
  EXPECT_EQ(numbers_of(results[1]), (Rows{{0, 2, 5, 5}, {3, 3, 5, 7}}));
  const at::Tensor places = at::tensor({0, 2, 3, 3, 5, 5, 5, 7}, at::kLong).view({1, 1, 2, 4});
  const at::Tensor grad = laid_out(at::ones({1, 1, 2, 4}, at::kDouble), "S(3)", lockstep);
  const FramedCall backward(
      "aten::max_pool2d_with_indices_backward", "",
      {grad, x, kernel, one, padding, one, false, laid_out(places, "S(3)", lockstep)});
  EXPECT_EQ(numbers_of(gradients(backward)[0]), (Rows{{1, 0, 0, 3}, {1, 2, 0, 1}}));
}

TEST(PoolForm, PaddingIsNeverTheMaximum) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor integers = column({-5, -7, -3, -9}).to(at::kLong);
  const FramedCall of_integers = max_pool(laid_out(integers, "S(2)", lockstep));
  EXPECT_EQ(numbers_of(pooled(of_integers, {1, 1, 4, 1})[0]), (Rows{{-5, -3}, {-3, -3}}));
  // Where all is -inf, the first place of the window counts that is not padding.
  const at::Tensor low = at::full({1, 1, 4, 1}, -kInfinity, at::kDouble);
  const FramedCall call = max_pool(laid_out(low, "S(2)", lockstep));
  EXPECT_EQ(numbers_of(pooled(call, {1, 1, 4, 1})[1]), (Rows{{0, 0}, {1, 2}}));
}

TEST(PoolForm, MeansCountPaddingOrNot) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(column({3, 6, 9, 12, 15, 18}), "S(2)", lockstep);
  const Shape sizes{1, 1, 6, 1};
  EXPECT_EQ(numbers_of(pooled(avg_pool(x, true), sizes)[0]), (Rows{{3, 6, 9}, {12, 15, 11}}));
  EXPECT_EQ(numbers_of(pooled(avg_pool(x, false), sizes)[0]), (Rows{{4.5, 6, 9}, {12, 15, 16.5}}));
  EXPECT_EQ(numbers_of(pooled(avg_pool(x, false, 1), sizes)[0]), (Rows{{9, 18, 27}, {36, 45, 33}}));
}

TEST(PoolForm, ALastWindowThatEndsOutsideCountsWhatIsInside) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(column({3, 6, 9, 12, 15}), "S(2)", lockstep);
  const FramedCall call("aten::avg_pool2d", "",
                        {x, Ints{2, 1}, Ints{2, 1}, Ints{0, 0}, true, true, c10::IValue()});
  EXPECT_EQ(numbers_of(pooled(call, {1, 1, 3, 1})[0]), (Rows{{4.5, 10.5}, {15}}));
}

TEST(PoolForm, ARankWithoutResultsGetsNone) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(column({3, 1, 2}), "S(2)", lockstep);
  const FramedCall call("aten::max_pool2d_with_indices", "",
                        {x, Ints{3, 1}, Ints{1, 1}, Ints{0, 0}, Ints{1, 1}, false});
  const auto results = pooled(call, {1, 1, 1, 1});
  EXPECT_EQ(numbers_of(results[0]), (Rows{{3}, {}}));
  EXPECT_EQ(numbers_of(results[1]), (Rows{{0}, {}}));
  EXPECT_EQ(results[1][1].scalar_type(), at::kLong);
  const at::Tensor grad = laid_out(column({7}), "S(2)", lockstep);
  const at::Tensor place = laid_out(column({0}).to(at::kLong), "S(2)", lockstep);
  const FramedCall backward(
      "aten::max_pool2d_with_indices_backward", "",
      {grad, x, Ints{3, 1}, Ints{1, 1}, Ints{0, 0}, Ints{1, 1}, false, place});
  EXPECT_EQ(numbers_of(gradients(backward)[0]), (Rows{{7, 0}, {0}}));
}

TEST(PoolForm, LeavesTheOpAloneWhereNoDimensionOfSpaceIsSharded) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = at::ones({2, 1, 4, 1}, at::kDouble);
  const FramedCall call = max_pool(laid_out(x, "S(0)", lockstep));
  const Decision d = form_of(call, {2, 1, 4, 1}, "S(0)");
  EXPECT_FALSE(d.local.call);
  EXPECT_FALSE(d.local.beforehand);
}

TEST(PoolForm, GradientsGoToThePlacesOfTheMaxima) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(column({3, 1, 4, 1, 5, 9}), "S(2)", lockstep);
  const at::Tensor places = column({0, 2, 2, 4, 5, 5}).to(at::kLong);
  const at::Tensor grad = laid_out(column({1, 2, 3, 4, 5, 6}), "S(2)", lockstep);
  const FramedCall call = max_pool_backward(grad, x, laid_out(places, "S(2)", lockstep));
  EXPECT_EQ(numbers_of(gradients(call)[0]), (Rows{{1, 0, 5}, {0, 4, 11}}));
}

TEST(PoolForm, GradientsOfMeansAreSpreadOverTheirWindows) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(column({0, 0, 0, 0, 0, 0}), "S(2)", lockstep);
  const at::Tensor grad = laid_out(column({6, 6, 6, 6, 6, 6}), "S(2)", lockstep);
  const auto of = [&](bool count_padding) {
    const FramedCall call(
        "aten::avg_pool2d_backward", "",
        {grad, x, Ints{3, 1}, Ints{1, 1}, Ints{1, 0}, false, count_padding, c10::IValue()});
    return numbers_of(gradients(call)[0]);
  };
  EXPECT_EQ(of(true), (Rows{{4, 6, 6}, {6, 6, 4}}));
  EXPECT_EQ(of(false), (Rows{{5, 7, 6}, {6, 7, 5}}));  // the first window gives 3 to each of two
}

TEST(PoolForm, PlacesOutsideOfTheirWindowsAreRefused) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(column({3, 1, 4, 1, 5, 9}), "S(2)", lockstep);
  const at::Tensor places = column({5, 2, 2, 4, 5, 5}).to(at::kLong);
  const FramedCall call = max_pool_backward(x, x, laid_out(places, "S(2)", lockstep));
  expect_error<c10::IndexError>(
      [&] { gradients(call); },
      {"[aten::max_pool2d_with_indices_backward] indices are outside of the windows",
       "pass those that the forward gave"});
}

}  // namespace
}  // namespace intarsia
