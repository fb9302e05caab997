#include "tensor/local/window_forms.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/communication.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::FramedCall;
using testing::Ints;
using testing::laid_out;
using testing::Numbers;
using testing::numbers_of;
using testing::question_of;
using testing::run_on_pieces;
using testing::unmoved;
using Rows = std::vector<Numbers>;

Decision form_of(const FramedCall& call, std::string_view result, const Shape& sizes) {
  Decision d = unmoved(call.frame, {result});
  set_window_form(call.frame, question_of(call.frame, d), {sizes}, d);
  return d;
}

/// The pieces of a result of these sizes, laid out as the operand is.
Rows result_of(const FramedCall& call, const Shape& sizes) {
  const std::string layout = call.frame.lead->spec()->layout.placements_text();
  return numbers_of(run_on_pieces(call.frame, form_of(call, layout, sizes))[0]);
}

class WindowForms : public ::testing::Test {
 protected:
  const Lockstep lockstep_{"[a=2]"};
  const at::Tensor x_ = laid_out(counting({5}), "S(0)", lockstep_);  // 0 1 2 | 3 4
};

FramedCall padding(const at::Tensor& x, const Ints& widths) {
  return FramedCall("aten::constant_pad_nd", "", {x, widths, 9});
}

FramedCall rolling(const at::Tensor& x, const Ints& shifts, const Ints& dims) {
  return FramedCall("aten::roll", "", {x, shifts, dims});
}

TEST_F(WindowForms, PaddingMovesTheElementsBehindIt) {
  EXPECT_EQ(result_of(padding(x_, {1, 2}), {8}), (Rows{{9, 0, 1, 2}, {3, 4, 9, 9}}));
  EXPECT_EQ(result_of(padding(x_, {7, 0}), {12}), (Rows{{9, 9, 9, 9, 9, 9}, {9, 0, 1, 2, 3, 4}}));
}

TEST_F(WindowForms, NegativePaddingTakesElementsAway) {
  EXPECT_EQ(result_of(padding(x_, {-1, 2}), {6}), (Rows{{1, 2, 3}, {4, 9, 9}}));
  EXPECT_EQ(result_of(padding(x_, {-2, -2}), {1}), (Rows{{2}, {}}));
}

TEST_F(WindowForms, PaddingOfOtherDimensionsStaysAsItIs) {
  const at::Tensor x = laid_out(counting({2, 2}), "S(0)", lockstep_);
  const FramedCall both = padding(x, {1, 0, 0, 2});
  EXPECT_EQ(result_of(both, {4, 3}), (Rows{{9, 0, 1, 9, 2, 3}, {9, 9, 9, 9, 9, 9}}));
  const FramedCall columns = padding(x, {1, 0});
  const Decision d = form_of(columns, "S(0)", {2, 3});
  EXPECT_FALSE(d.local.beforehand);
  EXPECT_TRUE(d.local.arguments.empty());
}

TEST_F(WindowForms, FlipFetchesFromTheOtherEnd) {
  const FramedCall call("aten::flip", "", {x_, Ints{0}});
  EXPECT_EQ(result_of(call, {5}), (Rows{{4, 3, 2}, {1, 0}}));
  const at::Tensor square = laid_out(counting({2, 2}), "S(0)", lockstep_);
  const FramedCall other("aten::flip", "", {square, Ints{1}});
  EXPECT_FALSE(form_of(other, "S(0)", {2, 2}).local.beforehand);
}

TEST_F(WindowForms, RollTakesWhatComesRoundTheEnd) {
  EXPECT_EQ(result_of(rolling(x_, {2}, {0}), {5}), (Rows{{3, 4, 0}, {1, 2}}));
  EXPECT_EQ(result_of(rolling(x_, {-1}, {0}), {5}), (Rows{{1, 2, 3}, {4, 0}}));
  EXPECT_EQ(result_of(rolling(x_, {3, 4}, {0, 0}), {5}), (Rows{{3, 4, 0}, {1, 2}}));
}

TEST_F(WindowForms, RollByTheSizeSendsNothing) {
  const FramedCall call = rolling(x_, {-10}, {0});
  const Decision d = form_of(call, "S(0)", {5});
  EXPECT_FALSE(d.local.beforehand);
  EXPECT_EQ(numbers_of(run_on_pieces(call.frame, d)[0]), (Rows{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(bill(lockstep_.world()).count(), 0U);
}

TEST_F(WindowForms, RollShiftsOtherDimensionsLocally) {
  const at::Tensor x = laid_out(counting({2, 3}), "S(0)", lockstep_);
  EXPECT_EQ(result_of(rolling(x, {1, 1}, {0, 1}), {2, 3}), (Rows{{5, 3, 4}, {2, 0, 1}}));
  const FramedCall columns = rolling(x, {1}, {1});
  EXPECT_TRUE(form_of(columns, "S(0)", {2, 3}).local.arguments.empty());
}

TEST_F(WindowForms, ConvolutionsAndPoolsHaveFormsOfTheirOwn) {
  const at::Tensor image = laid_out(counting({1, 1, 4, 1}), "S(2)", lockstep_);
  const auto form = [&](const char* op, torch::jit::Stack arguments) {
    const FramedCall call(op, "", std::move(arguments));
    return form_of(call, "S(2)", {1, 1, 3, 1}).local;
  };
  const at::Tensor weight = at::ones({1, 1, 2, 1}, at::kDouble);
  const Ints one{1, 1};
  const Ints none{0, 0};
  EXPECT_TRUE(
      form("aten::convolution", {image, weight, {}, one, none, one, false, none, 1}).beforehand);
  EXPECT_TRUE(form("aten::avg_pool2d", {image, Ints{2, 1}, one, none}).beforehand);
  // A transposed convolution has no windows of its operand.
  EXPECT_FALSE(form("aten::convolution", {image, weight, {}, one, none, one, true, none, 1}).call);
}

}  // namespace
}  // namespace intarsia
