#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include "rules/asked.h"
#include "rules/families.h"
#include "rules/wrong_call.h"

namespace intarsia::rules {
namespace {

using testing::Asked;
using testing::indices;
using testing::Ints;
using testing::sized;
using testing::Texts;
using testing::texts;
using testing::unset;

constexpr std::int64_t kNone = at::Reduction::None;
constexpr std::int64_t kMean = at::Reduction::Mean;
constexpr std::int64_t kSum = at::Reduction::Sum;

TEST(FamiliesLayers, WeightsOfALossAreShardedWhereTheyDoNotRepeat) {
  const auto loss = [](const c10::IValue& weight, std::int64_t reduction) {
    return texts(weighted_loss(
        Asked("aten::binary_cross_entropy", {sized({2, 3}), sized({2, 3}), weight, reduction})));
  };
  EXPECT_EQ(loss(sized({3}), kMean), (Texts{"S(0),S(0),R -> P(sum)", "S(1),S(1),S(0) -> P(sum)"}));
  EXPECT_EQ(loss(sized({2, 1}), kNone), (Texts{"S(0),S(0),S(0) -> S(0)", "S(1),S(1),R -> S(1)"}));
  EXPECT_EQ(loss(unset(), kSum), (Texts{"S(0),S(0),R -> P(sum)", "S(1),S(1),R -> P(sum)"}));
  EXPECT_EQ(loss(sized({2}), kSum), Texts{});        // 2 is not 3
  EXPECT_EQ(loss(sized({1, 2, 3}), kSum), Texts{});  // it would widen the loss
  EXPECT_EQ(texts(weighted_loss(Asked("aten::soft_margin_loss", {sized({1, 3}), sized({1, 3})}))),
            (Texts{"S(1),S(1) -> P(sum)"}));
}

TEST(FamiliesLayers, GradientsOfWeightedLossesKeepTheSizes) {
  EXPECT_EQ(texts(weighted_loss(Asked("aten::binary_cross_entropy_backward",
                                      {sized({}), sized({2, 3}), sized({2, 3}), unset(), kMean}))),
            (Texts{"R,S(0),S(0),R -> S(0)", "R,S(1),S(1),R -> S(1)", "P,R,R,R -> P"}));
}

TEST(FamiliesLayers, MarginLossesAreOfRows) {
  const auto loss = [](std::int64_t reduction) {
    return Asked("aten::multilabel_margin_loss_forward",
                 {sized({4, 5}), indices({4, 5}), reduction});
  };
  EXPECT_EQ(texts(margin_loss(loss(kNone))), (Texts{"S(0),S(0) -> S(0),S(0)"}));
  EXPECT_EQ(texts(margin_loss(loss(kSum))), (Texts{"S(0),S(0) -> P(sum),S(0)"}));
  EXPECT_EQ(texts(margin_loss(loss(kMean))), Texts{});
  EXPECT_EQ(margin_loss_sizes(loss(kNone)), (Sizes{{4}, {4, 5}}));
  EXPECT_EQ(margin_loss_sizes(loss(kSum)), (Sizes{Shape{}, {4, 5}}));
  const auto one = [](const Ints& scores, const Ints& target, std::int64_t reduction) {
    return Asked("aten::multi_margin_loss",
                 {sized(scores), indices(target), 1, 1, sized({5}), reduction});
  };
  EXPECT_EQ(texts(margin_loss(one({4, 5}, {4}, kSum))), (Texts{"S(0),S(0),R -> P(sum)"}));
  EXPECT_EQ(margin_loss_sizes(one({4, 5}, {4}, kNone)), (Sizes{{4}}));
  EXPECT_EQ(texts(margin_loss(one({5}, {}, kNone))), Texts{});  // one row
  EXPECT_EQ(margin_loss_sizes(one({5}, {}, kNone)), Sizes{Shape{}});
}

TEST(FamiliesLayers, GradientsOfMarginLosses) {
  const auto backward = [](const Ints& grad, std::int64_t reduction) {
    return texts(margin_loss_backward(
        Asked("aten::multilabel_margin_loss_backward",
              {sized(grad), sized({4, 5}), indices({4, 5}), reduction, sized({4, 5})})));
  };
  EXPECT_EQ(backward({4}, kNone), (Texts{"S(0),S(0),S(0),S(0) -> S(0)", "P,R,R,R -> P"}));
  EXPECT_EQ(backward({}, kSum), (Texts{"R,S(0),S(0),S(0) -> S(0)", "P,R,R,R -> P"}));
  EXPECT_EQ(backward({}, kMean), (Texts{"P,R,R,R -> P"}));
  EXPECT_EQ(texts(margin_loss_backward(
                Asked("aten::multi_margin_loss_backward",
                      {sized({}), sized({4, 5}), indices({4}), 1, 1, sized({5}), kSum})))[0],
            "R,S(0),S(0),R -> S(0)");
}

TEST(FamiliesLayers, GluHalvesADimension) {
  EXPECT_EQ(glu_sizes(Asked("aten::glu", {sized({2, 6})})), (Sizes{{2, 3}}));
  EXPECT_EQ(glu_sizes(Asked("aten::glu", {sized({2, 6}), 0})), (Sizes{{1, 6}}));
}

TEST(FamiliesLayers, ImagesAreShardedByBatchAndChannel) {
  const Asked forward("aten::upsample_nearest2d", {sized({2, 3, 4, 5}), Ints{8, 9}});
  EXPECT_EQ(texts(upsample(forward)), (Texts{"S(0) -> S(0)", "S(1) -> S(1)", "P -> P"}));
  EXPECT_EQ(upsample_sizes(forward), (Sizes{{2, 3, 8, 9}}));
  EXPECT_EQ(upsample_sizes(Asked("aten::upsample_nearest2d", {sized({4, 5}), Ints{8, 9}})),
            Sizes{});
  EXPECT_EQ(sizes_argument(Asked("aten::upsample_nearest2d_backward",
                                 {sized({2, 3, 8, 9}), Ints{8, 9}, Ints{2, 3, 4, 5}})),
            (Sizes{{2, 3, 4, 5}}));
  EXPECT_EQ(sizes_argument(Asked("aten::diagonal_backward", {sized({3}), Ints{3, 4}, 0, 0, 1})),
            (Sizes{{3, 4}}));
}

TEST(FamiliesLayers, SamplesAreShardedLikeTheirGrid) {
  const at::Tensor x = sized({2, 3, 4, 5});
  const at::Tensor grid = sized({2, 6, 7, 2});
  const Asked forward("aten::grid_sampler_2d", {x, grid, 0, 0, false});
  EXPECT_EQ(texts(grid_sampler(forward)), (Texts{"S(0),S(0) -> S(0)", "S(1),R -> S(1)",
                                                 "R,S(1) -> S(2)", "R,S(2) -> S(3)", "P,R -> P"}));
  EXPECT_EQ(grid_sampler_sizes(forward), (Sizes{{2, 3, 6, 7}}));
  const Asked backward("aten::grid_sampler_2d_backward", {sized({2, 3, 6, 7}), x, grid, 0, 0, false,
                                                          std::array<bool, 2>{true, true}});
  EXPECT_EQ(texts(grid_sampler_backward(backward)),
            (Texts{"S(0),S(0),S(0) -> S(0),S(0)", "S(1),S(1),R -> S(1),P(sum)",
                   "S(2),R,S(1) -> P(sum),S(1)", "S(3),R,S(2) -> P(sum),S(2)", "P,R,R -> P,P"}));
  EXPECT_EQ(grid_sampler_backward_sizes(backward), (Sizes{{2, 3, 4, 5}, {2, 6, 7, 2}}));
  EXPECT_EQ(grid_sampler_sizes(Asked("aten::grid_sampler_2d", {x, sized({2, 6, 2}), 0, 0, false})),
            Sizes{});
}

TEST(FamiliesLayers, ShuffledChannelsStayTogether) {
  EXPECT_EQ(texts(channel_shuffle(Asked("aten::channel_shuffle", {sized({2, 4, 5}), 2}))),
            (Texts{"S(0) -> S(0)", "S(2) -> S(2)", "P -> P"}));
  const Asked shuffle("aten::pixel_shuffle", {sized({2, 12, 4, 5}), 2});
  EXPECT_EQ(texts(pixel_shuffle(shuffle)), (Texts{"S(0) -> S(0)", "P -> P"}));
  EXPECT_EQ(pixel_shuffle_sizes(shuffle), (Sizes{{2, 3, 8, 10}}));
  const auto unshuffled = [](const Ints& sizes) {
    return pixel_unshuffle_sizes(Asked("aten::pixel_unshuffle", {sized(sizes), 2}));
  };
  EXPECT_EQ(unshuffled({2, 3, 8, 10}), (Sizes{{2, 12, 4, 5}}));
  EXPECT_EQ(unshuffled({0, 3, 8, 10}), (Sizes{{0, 3, 8, 10}}));  // an oddity of ATen
  EXPECT_THROW(unshuffled({8, 10}), WrongCall);
}

TEST(FamiliesLayers, ColumnsOfImages) {
  const auto columns = [](const Ints& sizes) {
    return Asked("aten::im2col", {sized(sizes), Ints{2, 3}, Ints{1, 2}, Ints{1, 0}, Ints{2, 1}});
  };
  // Windows of 2 begin at rows -1, 1, 3; those of 3, which reach over 5 columns, at 0 and 1.
  EXPECT_EQ(im2col_sizes(columns({4, 3, 5, 6})), (Sizes{{4, 18, 6}}));
  EXPECT_EQ(im2col_sizes(columns({3, 5, 6})), (Sizes{{18, 6}}));
  EXPECT_EQ(im2col_sizes(columns({5, 6})), Sizes{});
  EXPECT_EQ(texts(image_batch(columns({4, 3, 5, 6}))), (Texts{"S(0) -> S(0)", "P -> P"}));
  EXPECT_EQ(texts(image_batch(columns({3, 5, 6}))), (Texts{"P -> P"}));
  const Asked image("aten::col2im",
                    {sized({4, 12, 20}), Ints{5, 6}, Ints{2}, Ints{1}, Ints{0}, Ints{1}});
  EXPECT_EQ(col2im_sizes(image), (Sizes{{4, 3, 5, 6}}));
  EXPECT_EQ(texts(image_batch(image)), (Texts{"S(0) -> S(0)", "P -> P"}));
}

}  // namespace
}  // namespace intarsia::rules
