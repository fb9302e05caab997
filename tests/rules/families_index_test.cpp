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

using Tensors = std::vector<at::Tensor>;
using Optionals = std::vector<std::optional<at::Tensor>>;

Asked joined(const char* op, const Tensors& tensors, std::int64_t dim) {
  return {op, {tensors, dim}};
}

TEST(FamiliesIndex, JoinedPiecesOfOneLengthAreBlocks) {
  EXPECT_EQ(texts(cat(joined("aten::cat", {sized({2, 3}), sized({2, 3})}, 0))),
            (Texts{"S(1),S(1) -> S(1)", "P(*),P(*) -> P(*)", "S(0),S(0) -> SS(0,2) in runs"}));
  EXPECT_EQ(texts(cat(joined("aten::cat", {sized({2, 3}), sized({2, 4})}, -1))),
            (Texts{"S(0),S(0) -> S(0)", "P(*),P(*) -> P(*)"}));
  // Where one is converted, sums and averages are all that passes.
  EXPECT_EQ(texts(cat(joined("aten::cat", {sized({2}), sized({4}, at::kDouble)}, 0))),
            (Texts{"P,P -> P"}));
}

TEST(FamiliesIndex, CatSkipsEmptyTensorsOfOneDimension) {
  const Asked asked = joined("aten::cat", {sized({0}), sized({2, 3}), sized({1, 3})}, 0);
  EXPECT_EQ(texts(cat(asked)), (Texts{"R,S(1),S(1) -> S(1)", "P(*),P(*),P(*) -> P(*)"}));
  EXPECT_EQ(cat_sizes(asked), (Sizes{{3, 3}}));
  EXPECT_EQ(cat_sizes(joined("aten::cat", {sized({0}), sized({0})}, 0)), (Sizes{{0}}));
}

TEST(FamiliesIndex, SizesOfJoinedTensors) {
  EXPECT_EQ(cat_sizes(joined("aten::cat", {sized({2, 3}), sized({2, 0}), sized({2, 4})}, -1)),
            (Sizes{{2, 7}}));
  expect_error<ValueError>(
      [] {
        cat_sizes(joined("aten::cat", {sized({2, 3}), sized({2, 4})}, 0));
      },
      {"[aten::cat]", "sizes (2,4) do not fit along dim 0 to (2,3)"});
  expect_error<ValueError>(
      [] {
        cat_sizes(joined("aten::cat", {sized({}), sized({})}, 0));
      },
      {"tensors of no dimension cannot be joined"});
  EXPECT_EQ(stack_sizes(joined("aten::stack", {sized({2, 3}), sized({2, 3})}, -1)),
            (Sizes{{2, 3, 2}}));
  expect_error<ValueError>(
      [] {
        stack_sizes(joined("aten::stack", {sized({2, 3}), sized({2, 1})}, 0));
      },
      {"[aten::stack]", "sizes (2,1) and (2,3) differ"});
}

TEST(FamiliesIndex, StackMovesTheDimensionsBehindTheNewOne) {
  EXPECT_EQ(texts(stack(joined("aten::stack", {sized({2, 3}), sized({2, 3})}, 1))),
            (Texts{"S(0),S(0) -> S(0)", "S(1),S(1) -> S(2)", "P(*),P(*) -> P(*)"}));
}

TEST(FamiliesIndex, ATableIsLookedUpInPlaceWhereTheResultIsSmaller) {
  const auto select = [](at::ScalarType type, std::int64_t count) {
    return texts(
        index_select(Asked("aten::index_select", {sized({6, 4}, type), 0, indices({count})})));
  };
  EXPECT_EQ(select(at::kFloat, 6),
            (Texts{"S(1),R -> S(1)", "R,S(0) -> S(0)", "S(0),R -> P(sum)", "P(*),R -> P(*)"}));
  EXPECT_EQ(select(at::kFloat, 7), (Texts{"S(1),R -> S(1)", "R,S(0) -> S(0)", "P(*),R -> P(*)"}));
  EXPECT_EQ(select(at::kBool, 2)[2], "S(0),R -> P(or)");
  EXPECT_EQ(texts(index_select(Asked("aten::index_select", {sized({}), 0, indices({1})}))),
            Texts{});
  const auto sizes = [](const Ints& index) {
    return index_select_sizes(Asked("aten::index_select", {sized({6, 4}), -1, indices(index)}));
  };
  EXPECT_EQ(sizes({3}), (Sizes{{6, 3}}));
  EXPECT_EQ(sizes({}), (Sizes{{6, 1}}));
}

TEST(FamiliesIndex, GatherShardsWhatSelfAndIndexHaveInCommon) {
  EXPECT_EQ(texts(gather(Asked("aten::gather", {sized({4, 3}), 1, indices({4, 2})}))),
            (Texts{"S(0),S(0) -> S(0)", "R,S(1) -> S(1)", "S(1),R -> P(sum)", "P(*),R -> P(*)"}));
  EXPECT_EQ(texts(gather(Asked("aten::gather", {sized({4, 3}), 1, indices({2, 9})}))),
            (Texts{"R,S(1) -> S(1)", "P(*),R -> P(*)"}));
  EXPECT_EQ(gather_sizes(Asked("aten::gather", {sized({4, 3}), 1, indices({2, 9})})),
            (Sizes{{2, 9}}));
}

TEST(FamiliesIndex, ScatteredRowsAreWrittenWhereTheyAre) {
  const std::vector<c10::IValue> args{sized({4, 3}), 1, indices({4, 2}), sized({4, 2})};
  EXPECT_EQ(texts(scatter(Asked("aten::scatter_add", args))),
            (Texts{"S(0),S(0),S(0) -> S(0)", "S(1),R,R -> S(1)", "P(sum),S(1),S(1) -> P(sum)",
                   "P,R,P -> P"}));
  EXPECT_EQ(texts(scatter(Asked("aten::scatter.src", args))),
            (Texts{"S(0),S(0),S(0) -> S(0)", "S(1),R,R -> S(1)", "P,R,P -> P"}));
  EXPECT_EQ(
      texts(scatter(Asked("aten::scatter_reduce.two", {args[0], 1, args[2], args[3], "amax"}))),
      (Texts{"S(0),S(0),S(0) -> S(0)", "S(1),R,R -> S(1)"}));
  EXPECT_EQ(texts(scatter(Asked("aten::scatter.value", {args[0], 1, args[2], 7}))),
            (Texts{"S(0),S(0) -> S(0)", "S(1),R -> S(1)"}));
  // A shorter index: its elements are not those of the same rank.
  EXPECT_EQ(texts(scatter(Asked("aten::scatter.value", {args[0], 1, indices({3, 2}), 7}))),
            (Texts{"S(1),R -> S(1)"}));
}

TEST(FamiliesIndex, IndexAddHasRowsOfItsSource) {
  const std::vector<c10::IValue> args{sized({4, 3}), 0, indices({2}), sized({2, 3})};
  EXPECT_EQ(texts(index_add(Asked("aten::index_add", args))),
            (Texts{"S(0),R,R -> S(0)", "S(1),R,S(1) -> S(1)", "P(sum),S(0),S(0) -> P(sum)",
                   "P,R,P -> P"}));
  EXPECT_EQ(texts(index_add(Asked("aten::index_copy", args))),
            (Texts{"S(0),R,R -> S(0)", "S(1),R,S(1) -> S(1)", "P,R,P -> P"}));
  EXPECT_EQ(texts(index_add(Asked("aten::index_reduce", {args[0], 0, args[2], args[3], "prod"}))),
            (Texts{"S(0),R,R -> S(0)", "S(1),R,S(1) -> S(1)"}));
  EXPECT_EQ(texts(index_add(Asked("aten::index_fill.int_Scalar", {args[0], 0, args[2], 1}))),
            (Texts{"S(0),R -> S(0)", "S(1),R -> S(1)"}));
  EXPECT_EQ(
      texts(index_add(Asked("aten::index_fill.int_Tensor", {args[0], 0, args[2], sized({})}))),
      (Texts{"S(0),R,R -> S(0)", "S(1),R,R -> S(1)"}));
}

TEST(FamiliesIndex, IndexedDimensionsAreReplacedByThoseOfTheIndex) {
  const at::Tensor x = sized({5, 6, 7});
  const Asked middle("aten::index.Tensor", {x, Optionals{std::nullopt, indices({3})}});
  EXPECT_EQ(texts(index(middle)), (Texts{"S(0),R,R -> S(0)", "S(2),R,R -> S(2)", "R,R,S(0) -> S(1)",
                                         "S(1),R,R -> P(sum)", "P(*),R,R -> P(*)"}));
  EXPECT_EQ(index_sizes(middle), (Sizes{{5, 3, 7}}));
  // Two indices that broadcast to (4,3), beside each other.
  const Asked both("aten::index.Tensor",
                   {x, Optionals{std::nullopt, indices({4, 1}), indices({3})}});
  EXPECT_EQ(texts(index(both)), (Texts{"S(0),R,R,R -> S(0)", "R,R,S(0),R -> S(1)",
                                       "R,R,R,S(0) -> S(2)", "P(*),R,R,R -> P(*)"}));
  EXPECT_EQ(index_sizes(both), (Sizes{{5, 4, 3}}));
}

TEST(FamiliesIndex, IndicesApartComeFirst) {
  const Asked apart(
      "aten::index.Tensor",
      {sized({5, 6, 7, 8}), Optionals{std::nullopt, indices({2}), std::nullopt, indices({2})}});
  EXPECT_EQ(texts(index(apart)), (Texts{"S(0),R,R,R,R -> S(1)", "S(2),R,R,R,R -> S(2)",
                                        "R,R,S(0),R,S(0) -> S(0)", "P(*),R,R,R,R -> P(*)"}));
  EXPECT_EQ(index_sizes(apart), (Sizes{{2, 5, 7}}));
  const Asked mask("aten::index.Tensor", {sized({5, 6}), Optionals{sized({5}, at::kBool)}});
  EXPECT_EQ(texts(index(mask)), Texts{});
  EXPECT_EQ(index_sizes(mask), Sizes{});  // values tell
}

TEST(FamiliesIndex, WritesByIndex) {
  const auto put = [](const at::Tensor& i, const Ints& values, bool accumulate) {
    return texts(index_put(
        Asked("aten::index_put", {sized({5, 6}), Optionals{i}, sized(values), accumulate})));
  };
  EXPECT_EQ(put(indices({3}), {3, 6}, false),
            (Texts{"S(0),R,R -> S(0)", "S(1),R,S(1) -> S(1)", "P,R,P -> P"}));
  EXPECT_EQ(put(indices({3}), {3, 1}, true), (Texts{"S(0),R,R -> S(0)", "S(1),R,R -> S(1)",
                                                    "P,R,P -> P", "P(sum),S(0),S(0) -> P(sum)"}));
  EXPECT_EQ(put(indices({3}), {6}, true)[3], "P(sum),S(0),R -> P(sum)");
  EXPECT_EQ(put(indices({1}), {6}, true).size(), 3);
  // A mask and one number.
  EXPECT_EQ(put(sized({5}, at::kBool), {}, false),
            (Texts{"S(0),S(0),R -> S(0)", "S(1),R,R -> S(1)"}));
  EXPECT_EQ(put(sized({5}, at::kBool), {6}, false), Texts{});
}

TEST(FamiliesIndex, TheDimensionOfATable) {
  EXPECT_EQ(table_dim(Asked("aten::index_select", {sized({6, 4}), -1, indices({3})})), 1);
  EXPECT_EQ(table_dim(Asked("aten::embedding", {sized({6, 4}), indices({3})})), 0);
  const auto of_index = [](const Optionals& list) {
    return table_dim(Asked("aten::index.Tensor", {sized({5, 6, 7}), list}));
  };
  EXPECT_EQ(of_index({std::nullopt, indices({3})}), 1);
  EXPECT_EQ(of_index({indices({3}), indices({3})}), std::nullopt);
  EXPECT_EQ(of_index({sized({5}, at::kBool)}), std::nullopt);
}

TEST(FamiliesIndex, BatchesOfMatrices) {
  EXPECT_EQ(texts(matrix_batch(Asked("aten::tril", {sized({2, 5, 3, 4})}))),
            (Texts{"S(0) -> S(0)", "S(1) -> S(1)", "P -> P"}));
  EXPECT_EQ(texts(matrix_batch(Asked("aten::tril", {sized({3, 4})}))), (Texts{"P -> P"}));
}

TEST(FamiliesIndex, GradientsOfViewsHaveTheSizesOfTheBase) {
  const Asked select("aten::select_backward", {sized({2, 4}), Ints{2, 3, 4}, -2, 0});
  EXPECT_EQ(texts(view_backward(select)), (Texts{"S(0) -> S(0)", "S(1) -> S(2)", "P -> P"}));
  EXPECT_EQ(view_backward_sizes(select), (Sizes{{2, 3, 4}}));
  const Asked slice("aten::slice_backward", {sized({2, 1, 4}), Ints{2, 3, 4}, 1, 0, 1, 1});
  EXPECT_EQ(texts(view_backward(slice)), (Texts{"S(0) -> S(0)", "S(2) -> S(2)", "P -> P"}));
}

}  // namespace
}  // namespace intarsia::rules
