#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "rules/asked.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

using testing::Asked;
using testing::expect_error;
using testing::indices;
using testing::Ints;
using testing::sized;
using testing::Texts;
using testing::texts;
using testing::unset;

constexpr std::int64_t kNone = at::Reduction::None;
constexpr std::int64_t kMean = at::Reduction::Mean;
constexpr std::int64_t kSum = at::Reduction::Sum;

TEST(FamiliesNn, EmbeddingTakesRowsOfTheTable) {
  const Asked asked("aten::embedding", {sized({9, 4}), indices({2, 3})});
  EXPECT_EQ(texts(embedding(asked)), (Texts{"R,S(0) -> S(0)", "R,S(1) -> S(1)", "S(1),R -> S(2)",
                                            "S(0),R -> P(sum)", "P(*),R -> P(*)"}));
  EXPECT_EQ(embedding_sizes(asked), (Sizes{{2, 3, 4}}));
  EXPECT_EQ(embedding_sizes(Asked("aten::embedding", {sized({9, 4}), indices({})})), (Sizes{{4}}));
  expect_error<ValueError>(
      [] {
        embedding_sizes(Asked("aten::embedding", {sized({9}), indices({2})}));
      },
      {"[aten::embedding]", "the table has sizes (9)", "two dimensions"});
}

TEST(FamiliesNn, GradientsOfATableAddUpUnlessTheyAreScaled) {
  const auto backward = [](bool by_frequency) {
    return Asked("aten::embedding_dense_backward",
                 {sized({2, 3, 4}), indices({2, 3}), 9, -1, by_frequency});
  };
  EXPECT_EQ(texts(embedding_backward(backward(false))),
            (Texts{"S(0),S(0) -> P(sum)", "S(1),S(1) -> P(sum)", "S(2),R -> S(1)", "P,R -> P"}));
  EXPECT_EQ(texts(embedding_backward(backward(true))), (Texts{"S(2),R -> S(1)", "P,R -> P"}));
  EXPECT_EQ(embedding_backward_sizes(backward(false)), (Sizes{{9, 4}}));
}

TEST(FamiliesNn, LossesOverClassesAreShardedByTheirSamples) {
  const auto loss = [](std::int64_t reduction) {
    return Asked("aten::nll_loss_forward", {sized({4, 5}), indices({4}), unset(), reduction, -100});
  };
  const std::string by_class = "S(1),R,R -> P(sum),R by formula";
  EXPECT_EQ(texts(nll_loss(loss(kMean))), (Texts{"S(0),S(0),R -> P(sum),R", by_class}));
  EXPECT_EQ(texts(nll_loss(loss(kSum))), (Texts{"S(0),S(0),R -> P(sum),P(sum)", by_class}));
  EXPECT_EQ(texts(nll_loss(loss(kNone))), (Texts{"S(0),S(0),R -> S(0),R", by_class}));
  EXPECT_EQ(nll_loss_sizes(loss(kSum)), (Sizes{Shape{}, Shape{}}));
  EXPECT_EQ(nll_loss_sizes(loss(kNone)), (Sizes{{4}, Shape{}}));
}

TEST(FamiliesNn, ClassesAreTheSecondDimensionOrTheOnlyOne) {
  const Asked image("aten::nll_loss2d_forward",
                    {sized({2, 5, 3, 4}), indices({2, 3, 4}), sized({5}), kNone, -100});
  EXPECT_EQ(texts(nll_loss(image)),
            (Texts{"S(0),S(0),R -> S(0),R", "S(2),S(1),R -> S(1),R", "S(3),S(2),R -> S(2),R",
                   "S(1),R,R -> P(sum),R by formula"}));
  const Asked one("aten::nll_loss_forward", {sized({5}), indices({}), unset(), kMean, -100});
  EXPECT_EQ(texts(nll_loss(one)), (Texts{"S(0),R,R -> P(sum),R by formula"}));
}

TEST(FamiliesNn, GradientsOfLossesOverClasses) {
  const auto backward = [](const Ints& grad, std::int64_t reduction) {
    return texts(nll_loss_backward(
        Asked("aten::nll_loss_backward",
              {sized(grad), sized({4, 5}), indices({4}), unset(), reduction, -100, sized({})})));
  };
  const std::string by_class = "R,S(1),R,R,R -> S(1) by formula";
  EXPECT_EQ(backward({}, kMean), (Texts{"R,S(0),S(0),R,R -> S(0)", by_class, "P,R,R,R,R -> P"}));
  EXPECT_EQ(backward({4}, kNone),
            (Texts{"S(0),S(0),S(0),R,R -> S(0)", by_class, "P,R,R,R,R -> P"}));
}

Asked attends(std::int64_t heads_of_keys, const c10::IValue& mask) {
  return {"aten::_scaled_dot_product_flash_attention_for_cpu",
          {sized({2, 4, 3, 8}), sized({2, heads_of_keys, 5, 8}), sized({2, heads_of_keys, 5, 6}),
           0.0, false, mask}};
}

TEST(FamiliesNn, AttentionIsShardedByBatchAndHead) {
  EXPECT_EQ(texts(attention(attends(4, unset()))),
            (Texts{"S(0),S(0),S(0),R -> S(0),S(0)", "S(1),S(1),S(1),R -> S(1),S(1)"}));
  EXPECT_EQ(attention_sizes(attends(4, unset())), (Sizes{{2, 4, 3, 6}, {2, 4, 3}}));
}

TEST(FamiliesNn, MasksAreShardedWhereTheyDoNotRepeat) {
  const auto masked = [](const Ints& sizes) { return texts(attention(attends(4, sized(sizes)))); };
  EXPECT_EQ(masked({2, 1, 3, 5}),
            (Texts{"S(0),S(0),S(0),S(0) -> S(0),S(0)", "S(1),S(1),S(1),R -> S(1),S(1)"}));
  EXPECT_EQ(masked({1, 4, 3, 5})[1], "S(1),S(1),S(1),S(1) -> S(1),S(1)");
  EXPECT_EQ(masked({4, 3, 5})[1], "S(1),S(1),S(1),S(0) -> S(1),S(1)");
  EXPECT_EQ(masked({3, 5}),
            (Texts{"S(0),S(0),S(0),R -> S(0),S(0)", "S(1),S(1),S(1),R -> S(1),S(1)"}));
}

TEST(FamiliesNn, HeadsThatShareKeysStayWithThem) {
  EXPECT_EQ(texts(attention(attends(2, unset()))),
            (Texts{"S(0),S(0),S(0),R -> S(0),S(0)", "S(1),S(1),S(1),R -> S(1),S(1) in 2 parts"}));
}

TEST(FamiliesNn, GradientsOfAttention) {
  const at::Tensor queries = sized({2, 4, 3, 8});
  const at::Tensor keys = sized({2, 4, 5, 8});
  const Asked backward("aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                       {queries, queries, keys, keys, queries, sized({2, 4, 3}), 0.0, false});
  EXPECT_EQ(texts(attention_backward(backward)),
            (Texts{"S(0),S(0),S(0),S(0),S(0),S(0),R -> S(0),S(0),S(0)",
                   "S(1),S(1),S(1),S(1),S(1),S(1),R -> S(1),S(1),S(1)"}));
  EXPECT_EQ(attention_backward_sizes(backward), (Sizes{{2, 4, 3, 8}, {2, 4, 5, 8}, {2, 4, 5, 8}}));
}

}  // namespace
}  // namespace intarsia::rules
