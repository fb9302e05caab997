#include "tensor/local/convolution_form.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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
using testing::row_of;
using testing::run_on_pieces;
using testing::unmoved;
using Rows = std::vector<Numbers>;

struct Options {
  at::Tensor bias = {};
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
};

/// A convolution of signals.
FramedCall convolution(const at::Tensor& x, const at::Tensor& weight, const Options& o = {}) {
  return FramedCall("aten::convolution", "",
                    {x, weight, o.bias.defined() ? c10::IValue(o.bias) : c10::IValue(),
                     Ints{o.stride}, Ints{o.padding}, Ints{o.dilation}, false, Ints{0}, o.groups});
}

/// Its decision, for a result of these sizes.
Decision form_of(const FramedCall& call, std::string_view result, const Shape& sizes) {
  Decision d = unmoved(call.frame, {result});
  set_convolution(call.frame, question_of(call.frame, d), {sizes}, d);
  return d;
}

/// The gradients of a convolution with padding 1.
FramedCall backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                    std::array<bool, 3> mask, std::int64_t padding = 1) {
  return FramedCall("aten::convolution_backward", "",
                    {grad, x, weight, Ints{weight.size(0)}, Ints{1}, Ints{padding}, Ints{1}, false,
                     Ints{0}, 1, mask});
}

Decision form_of_backward(const FramedCall& call, std::string_view of_input) {
  Decision d = unmoved(call.frame, {of_input, "P(sum)", "P(sum)"});
  const std::vector<Shape> sizes{d.in[1]->sizes, d.in[2]->sizes, {d.in[2]->sizes[0]}};
  set_convolution_backward(call.frame, question_of(call.frame, d), sizes, d);
  return d;
}

at::Tensor ones_of(const Ints& sizes) { return at::ones(sizes, at::kDouble); }

TEST(ConvolutionForm, PadsOnlyTheEndsOfTheFullTensor) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 1, 6}), "S(2)", lockstep);
  const FramedCall call = convolution(x, ones_of({1, 1, 3}), {.padding = 1});
  const Decision d = form_of(call, "S(2)", {1, 1, 6});
  EXPECT_EQ(numbers_of(run_on_pieces(call.frame, d)[0]), (Rows{{1, 3, 6}, {9, 12, 9}}));
}

TEST(ConvolutionForm, WindowsOfUnevenPiecesWithStrideAndDilation) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 1, 7}), "S(2)", lockstep);
  const FramedCall strided = convolution(x, ones_of({1, 1, 3}), {.stride = 2});
  EXPECT_EQ(numbers_of(run_on_pieces(strided.frame, form_of(strided, "S(2)", {1, 1, 3}))[0]),
            (Rows{{3, 9}, {15}}));  // 0 + 1 + 2, 2 + 3 + 4, 4 + 5 + 6
  const FramedCall dilated = convolution(x, ones_of({1, 1, 2}), {.dilation = 3});
  EXPECT_EQ(numbers_of(run_on_pieces(dilated.frame, form_of(dilated, "S(2)", {1, 1, 4}))[0]),
            (Rows{{3, 5}, {7, 9}}));  // 0 + 3, 1 + 4, 2 + 5, 3 + 6
}

TEST(ConvolutionForm, ARankWithoutResultsGetsNone) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 1, 3}), "S(2)", lockstep);
  const at::Tensor bias = row_of({10});
  const FramedCall call = convolution(x, ones_of({1, 1, 3}), {.bias = bias});
  const Decision d = form_of(call, "S(2)", {1, 1, 1});
  EXPECT_TRUE(d.local.runs_empty);
  EXPECT_EQ(numbers_of(run_on_pieces(call.frame, d)[0]), (Rows{{13}, {}}));
}

TEST(ConvolutionForm, LeavesTheOpAloneWhereNoRankReadsBeyondItsPiece) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor batch = laid_out(counting({2, 1, 3}), "S(0)", lockstep);
  const FramedCall each = convolution(batch, ones_of({1, 1, 3}));
  EXPECT_FALSE(form_of(each, "S(0)", {2, 1, 1}).local.call);
  const at::Tensor x = laid_out(counting({1, 1, 6}), "S(2)", lockstep);
  const FramedCall single = convolution(x, ones_of({1, 1, 1}));
  const Decision d = form_of(single, "S(2)", {1, 1, 6});
  EXPECT_FALSE(d.local.call);
  EXPECT_FALSE(d.local.beforehand);
  EXPECT_FALSE(d.local.runs_empty);
}

TEST(ConvolutionForm, ARankWithoutChannelsStillAddsItsBias) {
  const Lockstep lockstep("[a=2]");
  const Mesh& mesh = lockstep.mesh();
  const at::Tensor x = laid_out(counting({1, 1, 3}), "S(1)", lockstep);
  const at::Tensor weight = laid_out(ones_of({2, 1, 1}), "S(1)", lockstep);
  const at::Tensor bias = from_locals({row_of({5, 6}), row_of({7, 8})},
                                      Layout::parse("P(sum)", mesh), lockstep.world());
  const FramedCall call = convolution(x, weight, {.bias = bias});
  const Decision d = form_of(call, "P(sum)", {1, 2, 3});
  EXPECT_TRUE(d.local.runs_empty);
  EXPECT_EQ(numbers_of(run_on_pieces(call.frame, d)[0]),
            (Rows{{5, 6, 7, 6, 7, 8}, {7, 7, 7, 8, 8, 8}}));
}

TEST(ConvolutionForm, APieceHasItsShareOfTheGroups) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 4, 1}), "S(1)", lockstep);
  const at::Tensor weight = laid_out(row_of({1, 10, 100, 1000}).view({4, 1, 1}), "S(0)", lockstep);
  const FramedCall call = convolution(x, weight, {.groups = 4});
  const Decision d = form_of(call, "S(1)", {1, 4, 1});
  EXPECT_EQ(numbers_of(run_on_pieces(call.frame, d)[0]), (Rows{{0, 10}, {200, 3000}}));
}

TEST(ConvolutionForm, GradientsOfWindowsAreAddedUpWhereTheirElementsAre) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 1, 6}), "S(2)", lockstep);
  const at::Tensor grad = laid_out(ones_of({1, 1, 6}), "S(2)", lockstep);
  const FramedCall call = backward(grad, x, ones_of({1, 1, 3}), {true, true, true});
  const auto results = run_on_pieces(call.frame, form_of_backward(call, "S(2)"));
  // An element is in the windows of itself and of its neighbours.
  EXPECT_EQ(numbers_of(results[0]), (Rows{{2, 3, 3}, {3, 3, 2}}));
  // Rank 0 sums x[o - 1 + k] for o < 3: 0 + 0 + 1, 0 + 1 + 2, 1 + 2 + 3.
  EXPECT_EQ(numbers_of(results[1]), (Rows{{1, 3, 6}, {9, 12, 9}}));
  EXPECT_EQ(numbers_of(results[2]), (Rows{{3}, {3}}));
}

TEST(ConvolutionForm, GradientsThatNobodyWantsFetchNothing) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 1, 6}), "S(2)", lockstep);
  const at::Tensor grad = laid_out(ones_of({1, 1, 6}), "S(2)", lockstep);
  const FramedCall call = backward(grad, x, ones_of({1, 1, 3}), {true, false, false});
  const Decision d = form_of_backward(call, "S(2)");
  EXPECT_FALSE(d.local.beforehand);
  const auto results = run_on_pieces(call.frame, d);
  EXPECT_EQ(numbers_of(results[0]), (Rows{{2, 3, 3}, {3, 3, 2}}));
  EXPECT_FALSE(results[1][0].defined());
  const FramedCall weight = backward(grad, x, ones_of({1, 1, 3}), {false, true, false});
  EXPECT_FALSE(form_of_backward(weight, "S(2)").local.afterwards);
}

TEST(ConvolutionForm, ARankWithoutGradientsAddsNothing) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 1, 3}), "S(2)", lockstep);
  const at::Tensor grad = laid_out(ones_of({1, 1, 1}), "S(2)", lockstep);
  const FramedCall call = backward(grad, x, ones_of({1, 1, 3}), {true, true, true}, 0);
  const auto results = run_on_pieces(call.frame, form_of_backward(call, "S(2)"));
  EXPECT_EQ(numbers_of(results[0]), (Rows{{1, 1}, {1}}));
  EXPECT_EQ(numbers_of(results[1]), (Rows{{0, 1, 2}, {0, 0, 0}}));
  EXPECT_EQ(numbers_of(results[2]), (Rows{{1}, {0}}));
}

}  // namespace
}  // namespace intarsia
