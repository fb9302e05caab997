#include <gtest/gtest.h>

#include <limits>

#include "error_text.h"
#include "intarsia/error.h"
#include "rules/asked.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

using testing::Asked;
using testing::expect_error;
using testing::Ints;
using testing::sized;
using testing::Texts;
using testing::texts;
using testing::unset;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::array<bool, 3> kAll{true, true, true};

TEST(FamiliesNorm, MomentsOfAShardedDimensionAreDoneByFormula) {
  const auto of = [](const char* op) { return variance(Asked(op, {sized({2, 4}), Ints{1}})); };
  EXPECT_EQ(texts(of("aten::var.correction")),
            (Texts{"S(0) -> S(0)", "S(1) -> P(sum) by formula"}));
  EXPECT_EQ(of("aten::var.correction")[1].formula, 1.0 / 4);  // the mean of each row
  EXPECT_EQ(texts(of("aten::std.correction")), (Texts{"S(0) -> S(0)", "S(1) -> R by formula"}));
  EXPECT_EQ(of("aten::std.correction")[1].formula, 2.0 / 4);
  EXPECT_EQ(texts(of("aten::var_mean.correction")),
            (Texts{"S(0) -> S(0),S(0)", "S(1) -> P(sum),R by formula"}));
  EXPECT_EQ(texts(of("aten::std_mean.correction"))[1], "S(1) -> R,R by formula");
}

TEST(FamiliesNorm, TheFirstPositionIsTheLeast) {
  const Rows along = arg_extremum(Asked("aten::argmax", {sized({2, 4}), 1}));
  EXPECT_EQ(texts(along), (Texts{"S(0) -> S(0)", "S(1) -> P(min) by formula"}));
  EXPECT_EQ(along[1].formula, 1.0 / 4);
  const Rows over_all = arg_extremum(Asked("aten::argmax", {sized({2, 4})}));
  EXPECT_EQ(texts(over_all), (Texts{"S(0) -> P(min) by formula", "S(1) -> P(min) by formula"}));
  EXPECT_EQ(over_all[0].formula, 1.0 / 8);
  EXPECT_EQ(texts(arg_extremum(Asked("aten::max.dim", {sized({2, 4}), 0}))),
            (Texts{"S(1) -> S(0),S(0)", "S(0) -> R,P(min) by formula"}));
  EXPECT_EQ(texts(both_extremes(Asked("aten::aminmax", {sized({2, 4}), 0, true}))),
            (Texts{"S(0) -> P(min),P(max)", "S(1) -> S(1),S(1)"}));
}

TEST(FamiliesNorm, EveryOrderOfANormHasItsKind) {
  const auto of = [](const c10::IValue& order) {
    return texts(vector_norm(Asked("aten::linalg_vector_norm", {sized({2, 4}), order, Ints{1}})));
  };
  EXPECT_EQ(of(0), (Texts{"S(0) -> S(0)", "S(1) -> P(sum)"}));
  EXPECT_EQ(of(kInfinity)[1], "S(1) -> P(max)");
  EXPECT_EQ(of(-kInfinity)[1], "S(1) -> P(min)");
  EXPECT_EQ(of(3)[1], "S(1) -> P(norm:3)");
  EXPECT_EQ(of(0.5)[1], "S(1) -> P(norm:0.5)");
  EXPECT_EQ(of(-1), (Texts{"S(0) -> S(0)", "S(1) -> R by formula"}));
  EXPECT_EQ(texts(vector_norm(Asked("aten::norm.Scalar", {sized({4}), 3}))),
            (Texts{"S(0) -> P(norm:3)"}));
  EXPECT_EQ(texts(vector_norm(Asked("aten::norm.ScalarOpt_dim", {sized({4}), unset(), Ints{0}}))),
            (Texts{"S(0) -> P(norm:2)"}));
}

TEST(FamiliesNorm, RenormReducesANormForEachSlice) {
  const Rows rows = renorm(Asked("aten::renorm", {sized({2, 3, 4}), 2, -2, 1}));
  EXPECT_EQ(texts(rows),
            (Texts{"S(0) -> S(0) by formula", "S(1) -> S(1)", "S(2) -> S(2) by formula"}));
  EXPECT_EQ(rows[0].formula, 3.0 / 24);
}

// ---- layer norm ----

TEST(FamiliesNorm, LayerNormShardsWhatIsNormalisedByFormula) {
  const Asked asked("aten::native_layer_norm",
                    {sized({2, 3, 4}), Ints{3, 4}, sized({3, 4}), unset(), 0.1});
  const Rows rows = layer_norm(asked);
  EXPECT_EQ(texts(rows), (Texts{"S(0),R,R -> S(0),S(0),S(0)", "S(1),S(0),R -> S(1),R,R by formula",
                                "S(2),S(1),R -> S(2),R,R by formula"}));
  EXPECT_EQ(rows[1].formula, 2.0 / 12);
  EXPECT_EQ(layer_norm_sizes(asked), (Sizes{{2, 3, 4}, {2, 1, 1}, {2, 1, 1}}));
}

TEST(FamiliesNorm, LayerNormBackwardAddsUpTheGradientsOfParameters) {
  const Asked asked("aten::native_layer_norm_backward",
                    {sized({2, 4}), sized({2, 4}), Ints{4}, sized({2, 1}), sized({2, 1}),
                     sized({4}), unset(), kAll});
  EXPECT_EQ(texts(layer_norm_backward(asked)),
            (Texts{"S(0),S(0),S(0),S(0),R,R -> S(0),P(sum),P(sum)",
                   "S(1),S(1),R,R,S(0),R -> S(1),S(0),S(0) by formula"}));
  EXPECT_EQ(layer_norm_backward_sizes(asked), (Sizes{{2, 4}, {4}, {4}}));
}

TEST(FamiliesNorm, LayerNormRefusalsNameTheSizes) {
  const auto asked = [](const Ints& shape, const c10::IValue& weight) {
    return Asked("aten::native_layer_norm", {sized({2, 3, 4}), shape, weight, unset(), 0.1});
  };
  expect_error<ValueError>([&] { layer_norm(asked({3}, unset())); },
                           {"[aten::native_layer_norm]", "(2,3,4)", "normalized_shape (3)"});
  expect_error<ValueError>([&] { layer_norm(asked({}, unset())); }, {"normalized_shape ()"});
  expect_error<ValueError>(
      [&] {
        layer_norm_sizes(asked({3, 4}, sized({4})));
      },
      {"weight has sizes (4) instead of (3,4)"});
}

// ---- group norm ----

Asked group_norm_of(const Ints& input, const Ints& counts, std::int64_t groups) {
  return {
      "aten::native_group_norm",
      {sized(input), sized({counts[1]}), unset(), counts[0], counts[1], counts[2], groups, 0.1}};
}

TEST(FamiliesNorm, GroupNormShardsChannelsAndSpaceByFormula) {
  const Asked asked = group_norm_of({2, 6, 5}, {2, 6, 5}, 3);
  const Rows rows = group_norm(asked);
  EXPECT_EQ(texts(rows), (Texts{"S(0),R,R -> S(0),S(0),S(0)", "S(1),S(0),R -> S(1),R,R by formula",
                                "S(2),R,R -> S(2),R,R by formula"}));
  EXPECT_EQ(rows[1].formula, 12.0 / 60);  // two values for each of 2 * 3 groups
  EXPECT_EQ(group_norm_sizes(asked), (Sizes{{2, 6, 5}, {2, 3}, {2, 3}}));
  // Numbers that are not those of the sizes.
  EXPECT_EQ(texts(group_norm(group_norm_of({2, 6, 5}, {1, 6, 10}, 3))), Texts{});
  EXPECT_EQ(texts(group_norm(group_norm_of({2, 6, 5}, {2, 6, 5}, 4))), Texts{});
  EXPECT_EQ(texts(group_norm(group_norm_of({12}, {2, 6, 1}, 3))), Texts{});
  expect_error<ValueError>(
      [] {
        group_norm_sizes(Asked("aten::native_group_norm",
                               {sized({2, 6, 5}), unset(), sized({5}), 2, 6, 5, 3, 0.1}));
      },
      {"[aten::native_group_norm]", "bias has sizes (5) instead of (6)"});
}

TEST(FamiliesNorm, GroupNormBackwardTakesTheMomentsHoweverTheyAre) {
  const Asked asked("aten::native_group_norm_backward",
                    {sized({2, 6, 5}), sized({2, 6, 5}), sized({2, 3}), sized({2, 3}), sized({6}),
                     2, 6, 5, 3, kAll});
  EXPECT_EQ(texts(group_norm_backward(asked)),
            (Texts{"S(0),S(0),S(0),S(0),R -> S(0),P(sum),P(sum)",
                   "S(1),S(1),R,R,S(0) -> S(1),S(0),S(0) by formula",
                   "S(1),S(1),S(0),S(0),S(0) -> S(1),S(0),S(0) by formula",
                   "S(1),S(1),S(1),S(1),S(0) -> S(1),S(0),S(0) by formula",
                   "S(2),S(2),R,R,R -> S(2),P(sum),P(sum) by formula"}));
  EXPECT_EQ(group_norm_backward_sizes(asked), (Sizes{{2, 6, 5}, {6}, {6}}));
}

// ---- batch norm ----

Asked batch_norm_of(const char* op, bool training) {
  const at::Tensor c = sized({3});
  return {op, {sized({4, 3, 5}), c, unset(), c, c, training, 0.1, 0.1}};
}

TEST(FamiliesNorm, BatchNormInTrainingReducesOverAllButChannels) {
  const Asked asked = batch_norm_of("aten::native_batch_norm", true);
  const Rows rows = batch_norm(asked);
  EXPECT_EQ(texts(rows),
            (Texts{"S(0),R,R,R,R -> S(0),R,R by formula", "S(1),S(0),R,S(0),S(0) -> S(1),S(0),S(0)",
                   "S(2),R,R,R,R -> S(2),R,R by formula"}));
  EXPECT_EQ(rows[0].formula, 6.0 / 60);  // two values for each channel
  EXPECT_EQ(batch_norm_sizes(asked), (Sizes{{4, 3, 5}, {3}, {3}}));
}

TEST(FamiliesNorm, BatchNormInEvaluationNeedsNoMoments) {
  const Asked asked = batch_norm_of("aten::native_batch_norm", false);
  EXPECT_EQ(texts(batch_norm(asked)),
            (Texts{"S(0),R,R,R,R -> S(0),R,R", "S(1),S(0),R,S(0),S(0) -> S(1),R,R",
                   "S(2),R,R,R,R -> S(2),R,R"}));
  EXPECT_EQ(batch_norm_sizes(asked), (Sizes{{4, 3, 5}, {0}, {0}}));
  const at::Tensor c = sized({3});
  EXPECT_EQ(batch_norm_sizes(Asked("aten::_native_batch_norm_legit_no_training",
                                   {sized({4, 3}), c, c, c, c, 0.1, 0.1})),
            (Sizes{{4, 3}, {0}, {0}}));
}

TEST(FamiliesNorm, BatchNormsThatGiveTheRunningMoments) {
  const at::Tensor c = sized({3});
  const Asked update("aten::_batch_norm_with_update_functional",
                     {sized({4, 3}), c, c, c, c, 0.1, 0.1});
  EXPECT_EQ(batch_norm_sizes(update), (Sizes{{4, 3}, {3}, {3}, {0}, {3}, {3}}));
  EXPECT_EQ(texts(batch_norm(update)),
            (Texts{"S(0),R,R,R,R -> S(0),R,R,R,R,R by formula",
                   "S(1),S(0),S(0),S(0),S(0) -> S(1),S(0),S(0),R,S(0),S(0)"}));
  // By formula in evaluation too, for ranks without elements; nothing is reduced.
  const Rows kept = batch_norm(batch_norm_of("aten::_native_batch_norm_legit_functional", false));
  EXPECT_EQ(texts(kept)[0], "S(0),R,R,R,R -> S(0),R,R,R,R by formula");
  EXPECT_EQ(kept[0].formula, 0);
  expect_error<ValueError>(
      [] {
        batch_norm_sizes(Asked("aten::native_batch_norm", {sized({4, 3}), unset(), unset(),
                                                           sized({4}), unset(), true, 0.1, 0.1}));
      },
      {"[aten::native_batch_norm]", "running_mean has sizes (4) instead of (3)"});
}

TEST(FamiliesNorm, BatchNormBackwardReducesForTheGradientOfTheInput) {
  const auto backward = [](bool train, bool of_input) {
    const at::Tensor c = sized({3});
    const at::Tensor saved = sized({train ? 3 : 0});
    return Asked("aten::native_batch_norm_backward",
                 {sized({4, 3}), sized({4, 3}), c, c, c, saved, saved, train, 0.1,
                  std::array<bool, 3>{of_input, true, true}});
  };
  EXPECT_EQ(texts(batch_norm_backward(backward(true, true))),
            (Texts{"S(0),S(0),R,R,R,R,R -> S(0),R,R by formula",
                   "S(1),S(1),S(0),S(0),S(0),S(0),S(0) -> S(1),S(0),S(0)"}));
  EXPECT_EQ(texts(batch_norm_backward(backward(true, false)))[0],
            "S(0),S(0),R,R,R,R,R -> S(0),P(sum),P(sum)");
  EXPECT_EQ(texts(batch_norm_backward(backward(false, true))),
            (Texts{"S(0),S(0),R,R,R,R,R -> S(0),P(sum),P(sum)",
                   "S(1),S(1),S(0),S(0),S(0),R,R -> S(1),S(0),S(0)"}));
  EXPECT_EQ(batch_norm_backward_sizes(backward(true, true)), (Sizes{{4, 3}, {3}, {3}}));
}

}  // namespace
}  // namespace intarsia::rules
