#include <gtest/gtest.h>

#include "rules/asked.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

using testing::Asked;
using testing::Ints;
using testing::partial_rows;
using testing::sized;
using testing::Texts;
using testing::texts;
using testing::unset;

struct Convolution {
  Ints stride = {1};
  Ints padding = {0};
  Ints dilation = {1};
  bool transposed = false;
  Ints output_padding = {0};
  std::int64_t groups = 1;
};

Asked convolved(const Ints& input, const Ints& weight, const c10::IValue& bias,
                const Convolution& c = {}) {
  return {"aten::convolution",
          {sized(input), sized(weight), bias, c.stride, c.padding, c.dilation, c.transposed,
           c.output_padding, c.groups}};
}

// ---- convolution ----

TEST(FamiliesWindows, ConvolutionReadsBesideItsPiece) {
  const Rows rows =
      convolution(convolved({2, 3, 8, 6}, {4, 3, 3, 1}, unset(), {.padding = {1, 0}}));
  EXPECT_EQ(texts(rows),
            (Texts{"S(0),R,R -> S(0)", "S(2),R,R -> S(2) in runs", "S(3),R,R -> S(3)",
                   "R,S(0),S(0) -> S(1)", "S(1),S(1),R -> P(sum)", "P,R,R -> P", "R,P,R -> P"}));
  EXPECT_DOUBLE_EQ(rows[1].sends, 2.0 / 8);  // windows of 3 share 2 elements
  EXPECT_DOUBLE_EQ(rows[2].sends, 0);
  // Windows that do not overlap send nothing.
  EXPECT_EQ(convolution(convolved({2, 3, 9}, {4, 3, 3}, unset(), {.stride = {3}}))[1].sends, 0);
}

TEST(FamiliesWindows, ABiasIsAddedOnce) {
  const Rows rows = convolution(convolved({2, 3, 8}, {4, 3, 3}, sized({4})));
  EXPECT_EQ(texts(rows)[3], "S(1),S(1),P(sum) -> P(sum)");
  EXPECT_EQ(texts(rows)[4], "P,R,P -> P");
  EXPECT_EQ(texts(rows)[5], "R,P,P -> P");
}

TEST(FamiliesWindows, GroupsOfChannelsStayTogether) {
  EXPECT_EQ(texts(convolution(convolved({2, 4, 8}, {6, 2, 3}, unset(), {.groups = 2})))[2],
            "S(1),S(0),S(0) -> S(1) in 2 parts");
  EXPECT_EQ(texts(convolution(convolved({2, 4, 8}, {4, 1, 3}, unset(), {.groups = 4})))[2],
            "S(1),S(0),S(0) -> S(1)");
  EXPECT_EQ(texts(convolution(convolved({2, 4, 8}, {8, 1, 3}, unset(), {.groups = 4})))[2],
            "S(1),S(0),S(0) -> S(1) in 4 parts");
}

TEST(FamiliesWindows, TransposedConvolutionHasItsChannelsTheOtherWayRound) {
  EXPECT_EQ(texts(convolution(convolved({2, 3, 5}, {3, 4, 3}, unset(), {.transposed = true}))),
            (Texts{"S(0),R,R -> S(0)", "R,S(1),S(0) -> S(1)", "S(1),S(0),R -> P(sum)", "P,R,R -> P",
                   "R,P,R -> P"}));
  EXPECT_EQ(texts(convolution(convolved({3, 5}, {3, 4, 3}, unset()))), Texts{});
}

TEST(FamiliesWindows, SizesOfConvolutions) {
  const auto length = [](std::int64_t input, const Convolution& c) {
    return convolution_sizes(convolved({2, 4, input}, {4, 2, 3}, unset(), c))[0];
  };
  EXPECT_EQ(length(8, {.groups = 2}), (Shape{2, 4, 6}));
  EXPECT_EQ(length(8, {.padding = {1}, .groups = 2}), (Shape{2, 4, 8}));
  EXPECT_EQ(length(8, {.stride = {2}, .groups = 2}), (Shape{2, 4, 3}));    // at 0, 2 and 4
  EXPECT_EQ(length(8, {.dilation = {3}, .groups = 2}), (Shape{2, 4, 2}));  // windows reach over 7
  // Five elements, two apart, each spread over three: 11 places; one off each end, one more.
  EXPECT_EQ(length(5, {.stride = {2}, .padding = {1}, .transposed = true, .output_padding = {1}}),
            (Shape{2, 2, 10}));
  EXPECT_EQ(length(5, {.transposed = true, .groups = 2}), (Shape{2, 4, 7}));
}

TEST(FamiliesWindows, GradientsOfConvolutions) {
  const auto backward = [](const Ints& grad, const Ints& input, const Ints& weight,
                           std::int64_t groups) {
    return Asked("aten::convolution_backward",
                 {sized(grad), sized(input), sized(weight), unset(), Ints{1}, Ints{1}, Ints{1},
                  false, Ints{0}, groups, std::array<bool, 3>{true, true, true}});
  };
  const Asked asked = backward({2, 4, 8}, {2, 3, 8}, {4, 3, 3}, 1);
  const Rows rows = convolution_backward(asked);
  EXPECT_EQ(
      texts(rows),
      (Texts{"S(0),S(0),R -> S(0),P(sum),P(sum)", "S(2),S(2),R -> S(2),P(sum),P(sum) in runs",
             "S(1),R,S(0) -> P(sum),S(0),S(0)", "R,S(1),S(1) -> S(1),S(1),R", "P,R,R -> P,P,P"}));
  EXPECT_DOUBLE_EQ(rows[1].sends,
                   2.0 / 8 * 48 / 64);  // of the input, for each byte of the gradient
  EXPECT_EQ(convolution_backward_sizes(asked), (Sizes{{2, 3, 8}, {4, 3, 3}, {4}}));
  EXPECT_EQ(texts(convolution_backward(backward({2, 6, 8}, {2, 4, 8}, {6, 2, 3}, 2)))[2],
            "S(1),S(1),S(0) -> S(1),S(0),S(0) in 2 parts");
}

// ---- pooling ----

TEST(FamiliesWindows, PoolsReadBesideTheirPiece) {
  const Rows rows = pool(Asked("aten::avg_pool2d", {sized({2, 3, 8, 9}), Ints{2, 3}, Ints{2, 1}}));
  EXPECT_EQ(texts(rows), (Texts{"S(0) -> S(0)", "S(1) -> S(1)", "P -> P", "S(2) -> S(2) in runs",
                                "S(3) -> S(3) in runs"}));
  EXPECT_DOUBLE_EQ(rows[3].sends, 0);
  EXPECT_DOUBLE_EQ(rows[4].sends, 2.0 / 9);
  // A maximum is not linear, and there may be no batch.
  EXPECT_EQ(texts(pool(Asked("aten::max_pool2d_with_indices", {sized({3, 8, 9}), Ints{2, 1}}))),
            (Texts{"S(0) -> S(0),S(0)", "S(1) -> S(1),S(1) in runs", "S(2) -> S(2),S(2)"}));
  // Means of integers are rounded.
  EXPECT_EQ(texts(pool(Asked("aten::avg_pool2d", {sized({3, 8, 9}, at::kLong), Ints{2}}))),
            (Texts{"S(0) -> S(0)", "P -> P"}));
}

TEST(FamiliesWindows, GradientsOfPoolsAreLinear) {
  const Asked asked("aten::max_pool2d_with_indices_backward",
                    {sized({3, 4, 9}), sized({3, 8, 9}), Ints{2, 1}, Ints{2, 1}, Ints{0}, Ints{1},
                     false, testing::indices({3, 4, 9})});
  EXPECT_EQ(texts(pool(asked)),
            (Texts{"S(0),S(0),S(0) -> S(0)", "P,R,R -> P", "S(1),S(1),S(1) -> S(1) in runs",
                   "S(2),S(2),S(2) -> S(2)"}));
  EXPECT_EQ(second_sizes(asked), (Sizes{{3, 8, 9}}));
}

TEST(FamiliesWindows, SizesOfPoolsAreThoseOfATen) {
  for (const std::int64_t input : {2, 3, 4, 5, 6, 7}) {
    for (const std::int64_t kernel : {1, 2}) {
      for (const std::int64_t stride : {1, 2, 3, 4}) {
        for (const std::int64_t padding : {std::int64_t{0}, kernel / 2}) {
          for (const bool ceil : {false, true}) {
            const at::Tensor x = sized({1, 1, input, 7});
            const at::Tensor expected =
                at::avg_pool2d(x, {kernel, 1}, {stride, 1}, {padding, 0}, ceil);
            EXPECT_EQ(pool_sizes(Asked("aten::avg_pool2d", {x, Ints{kernel, 1}, Ints{stride, 1},
                                                            Ints{padding, 0}, ceil})),
                      Sizes{shape_of(expected.sizes().vec())})
                << input << ' ' << kernel << ' ' << stride << ' ' << padding << ' ' << ceil;
          }
        }
      }
    }
  }
}

TEST(FamiliesWindows, PoolsToAGivenSizeShardBatchAndChannels) {
  const Asked adaptive("aten::adaptive_max_pool2d", {sized({2, 3, 8, 9}), Ints{4, 5}});
  EXPECT_EQ(texts(pool_each(adaptive)), (Texts{"S(0) -> S(0),S(0)", "S(1) -> S(1),S(1)"}));
  EXPECT_EQ(sizes_of_space(adaptive), (Sizes{{2, 3, 4, 5}, {2, 3, 4, 5}}));
  EXPECT_EQ(sizes_of_space(Asked("aten::_adaptive_avg_pool2d", {sized({3, 8, 9}), Ints{4}})),
            (Sizes{{3, 4, 4}}));
  EXPECT_EQ(
      partial_rows(pool_each(Asked("aten::max_unpool2d",
                                   {sized({3, 2, 2}), testing::indices({3, 2, 2}), Ints{4, 4}}))),
      (Texts{"P,R -> P"}));
}

TEST(FamiliesWindows, SamplesOfFractionalPoolsAlwaysHaveABatch) {
  const auto pooled = [](const Ints& input, const Ints& samples) {
    return texts(fractional_pool(Asked("aten::fractional_max_pool2d",
                                       {sized(input), Ints{2, 2}, Ints{4, 4}, sized(samples)})));
  };
  EXPECT_EQ(pooled({2, 3, 8, 8}, {2, 3, 2}),
            (Texts{"S(0),S(0) -> S(0),S(0)", "S(1),S(1) -> S(1),S(1)"}));
  EXPECT_EQ(pooled({3, 8, 8}, {1, 3, 2}), (Texts{"S(0),S(1) -> S(0),S(0)"}));
}

// ---- padding and moving ----

TEST(FamiliesWindows, PaddedDimensionsStayInRuns) {
  const Asked asked("aten::constant_pad_nd", {sized({5, 6}), Ints{1, 2}});
  const Rows rows = pad(asked);
  EXPECT_EQ(texts(rows), (Texts{"S(0) -> S(0)", "S(1) -> S(1) in runs"}));
  EXPECT_DOUBLE_EQ(rows[1].sends, 1.0 / 6);
  EXPECT_EQ(pad_sizes(asked), (Sizes{{5, 9}}));
  const Asked cropped("aten::constant_pad_nd", {sized({5, 6}), Ints{0, 0, -2, 1}});
  EXPECT_EQ(texts(pad(cropped)), (Texts{"S(0) -> S(0) in runs", "S(1) -> S(1)"}));
  EXPECT_DOUBLE_EQ(pad(cropped)[0].sends, 2.0 / 5);
  EXPECT_EQ(pad_sizes(cropped), (Sizes{{4, 6}}));
}

TEST(FamiliesWindows, PaddingWithWhatIsInsideNeedsAllOfADimension) {
  const auto padded = [](const Ints& widths) {
    return texts(pad_with_inside(Asked("aten::reflection_pad2d", {sized({3, 6, 7}), widths})));
  };
  EXPECT_EQ(padded({1, 2, 0, 0}), (Texts{"S(0) -> S(0)", "S(1) -> S(1)", "P(*) -> P(*)"}));
  EXPECT_EQ(padded({0, 0, 0, 1}), (Texts{"S(0) -> S(0)", "S(2) -> S(2)", "P(*) -> P(*)"}));
  const Asked backward("aten::reflection_pad1d_backward",
                       {sized({2, 9}), sized({2, 6}), Ints{1, 2}});
  EXPECT_EQ(texts(pad_with_inside(backward)), (Texts{"S(0),S(0) -> S(0)", "P,R -> P"}));
  EXPECT_EQ(pad_sizes(Asked("aten::reflection_pad1d", {sized({2, 6}), Ints{1, 2}})),
            (Sizes{{2, 9}}));
}

TEST(FamiliesWindows, FlippedDimensionsAreSentInFull) {
  const Rows rows = flip(Asked("aten::flip", {sized({4, 6}), Ints{-1}}));
  EXPECT_EQ(texts(rows), (Texts{"S(0) -> S(0)", "S(1) -> S(1) in runs", "P(*) -> P(*)"}));
  EXPECT_DOUBLE_EQ(rows[1].sends, 1);
  EXPECT_EQ(texts(flip(Asked("aten::flip", {sized({4}), Ints{}}))),
            (Texts{"S(0) -> S(0)", "P(*) -> P(*)"}));
}

TEST(FamiliesWindows, RollsSendTheShorterWay) {
  const auto rolled = [](std::int64_t shift) {
    return roll(Asked("aten::roll", {sized({4, 6}), Ints{shift}, Ints{1}}));
  };
  EXPECT_EQ(texts(rolled(2)), (Texts{"P(*) -> P(*)", "S(0) -> S(0)", "S(1) -> S(1) in runs"}));
  EXPECT_DOUBLE_EQ(rolled(2)[2].sends, 2.0 / 6);
  EXPECT_DOUBLE_EQ(rolled(-1)[2].sends, 1.0 / 6);
  EXPECT_EQ(texts(rolled(6))[2], "S(1) -> S(1)");  // once around
  EXPECT_EQ(texts(roll(Asked("aten::roll", {sized({4, 6}), Ints{2}}))), (Texts{"P(*) -> P(*)"}));
}

}  // namespace
}  // namespace intarsia::rules
