#include <gtest/gtest.h>

#include "rules/asked.h"
#include "rules/families.h"

namespace intarsia::rules {
namespace {

using testing::Asked;
using testing::indices;
using testing::Ints;
using testing::sized;
using testing::Texts;
using testing::texts;
using testing::unset;

TEST(FamiliesMove, RepeatedDimensionsAreNotSharded) {
  const Asked asked("aten::repeat", {sized({2, 3}), Ints{4, 1, 2}});
  EXPECT_EQ(texts(repeat(asked)), (Texts{"S(0) -> S(1)", "P -> P"}));
  EXPECT_EQ(repeat_sizes(asked), (Sizes{{4, 2, 6}}));
  EXPECT_EQ(repeat_sizes(Asked("aten::repeat", {sized({2, 3}), Ints{2}})), Sizes{});
}

TEST(FamiliesMove, EmbeddedDiagonalsAreNotSharded) {
  const auto embedded = [](std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
    return Asked("aten::diag_embed", {sized({2, 5, 3}), offset, dim1, dim2});
  };
  EXPECT_EQ(texts(diag_embed(embedded(0, -2, -1))),
            (Texts{"S(0) -> S(0)", "S(1) -> S(1)", "P -> P"}));
  EXPECT_EQ(diag_embed_sizes(embedded(0, -2, -1)), (Sizes{{2, 5, 3, 3}}));
  EXPECT_EQ(texts(diag_embed(embedded(-1, 0, 2))),
            (Texts{"S(0) -> S(1)", "S(1) -> S(3)", "P -> P"}));
  EXPECT_EQ(diag_embed_sizes(embedded(-1, 0, 2)), (Sizes{{4, 2, 4, 5}}));
  EXPECT_EQ(diag_embed_sizes(Asked("aten::diag_embed", {sized({})})), Sizes{});
}

TEST(FamiliesMove, GradientsOfDiagonals) {
  EXPECT_EQ(texts(diagonal_backward(
                Asked("aten::diagonal_backward", {sized({4, 3}), Ints{3, 4, 5}, 0, 0, -1}))),
            (Texts{"S(0) -> S(1)", "P -> P"}));
}

TEST(FamiliesMove, WritesToViewsShardTheOtherDimensions) {
  const at::Tensor self = sized({2, 3, 4});
  EXPECT_EQ(texts(view_scatter(Asked("aten::select_scatter", {self, sized({2, 4}), 1, 0}))),
            (Texts{"S(0),S(0) -> S(0)", "S(2),S(1) -> S(2)", "P,P -> P"}));
  EXPECT_EQ(texts(view_scatter(Asked("aten::slice_scatter", {self, sized({2, 1, 4}), -2, 0, 1}))),
            (Texts{"S(0),S(0) -> S(0)", "S(2),S(2) -> S(2)", "P,P -> P"}));
  EXPECT_EQ(texts(view_scatter(Asked("aten::diagonal_scatter", {self, sized({4, 2}), 0, 0, 1}))),
            (Texts{"S(2),S(0) -> S(2)", "P,P -> P"}));
  // What has not the dimensions of the view.
  EXPECT_EQ(texts(view_scatter(Asked("aten::select_scatter", {self, sized({4}), 1, 0}))), Texts{});
  EXPECT_EQ(texts(view_scatter(Asked("aten::diagonal_scatter", {self, self, 0, 0, 1}))), Texts{});
}

TEST(FamiliesMove, ATraceIsOneNumber) {
  const Asked asked("aten::trace", {sized({3, 4})});
  EXPECT_EQ(texts(trace(asked)), (Texts{"P -> P"}));
  EXPECT_EQ(one_number(asked), Sizes{Shape{}});
}

TEST(FamiliesMove, SequencesAreSearchedInFull) {
  const auto search = [](const Ints& sorted, const c10::IValue& values, const c10::IValue& sorter) {
    return Asked("aten::searchsorted.Tensor",
                 {sized(sorted), values, false, false, unset(), sorter});
  };
  EXPECT_EQ(texts(searchsorted(search({5}, sized({2, 3}), unset()))),
            (Texts{"R,S(0),R -> S(0)", "R,S(1),R -> S(1)"}));
  EXPECT_EQ(texts(searchsorted(search({2, 5}, sized({2, 3}), unset()))),
            (Texts{"S(0),S(0),R -> S(0)", "R,S(1),R -> S(1)"}));
  EXPECT_EQ(texts(searchsorted(search({2, 5}, sized({2, 3}), indices({2, 5}))))[0],
            "S(0),S(0),S(0) -> S(0)");
  EXPECT_EQ(texts(searchsorted(search({}, sized({2, 3}), unset()))),
            texts(searchsorted(search({5}, sized({2, 3}), unset()))));
  EXPECT_EQ(searchsorted_sizes(search({5}, sized({2, 3}), unset())), (Sizes{{2, 3}}));
  const Asked number("aten::searchsorted.Scalar", {sized({5}), 7});
  EXPECT_EQ(texts(searchsorted(number)), Texts{});
  EXPECT_EQ(searchsorted_sizes(number), Sizes{Shape{}});
}

TEST(FamiliesMove, LookupsAreShardedLikeWhatIsLookedUp) {
  const Rule take = lookup("take", "index", {0});
  const Asked taken("aten::take", {sized({9}), indices({2, 3})});
  EXPECT_EQ(take.name, "take");
  EXPECT_EQ(texts(take.rows(taken)), (Texts{"R,S(0) -> S(0)", "R,S(1) -> S(1)", "P,R -> P"}));
  EXPECT_EQ(take.sizes(taken), (Sizes{{2, 3}}));
  const Rule isin = lookup("isin", "elements");
  EXPECT_EQ(texts(isin.rows(Asked("aten::isin.Tensor_Tensor", {sized({4}), sized({9})}))),
            (Texts{"S(0),R -> S(0)"}));
  const Asked number("aten::isin.Scalar_Tensor", {1, sized({9})});
  EXPECT_EQ(texts(lookup("isin", "elements").rows(number)), Texts{});
  EXPECT_EQ(isin.sizes(number), Sizes{Shape{}});
}

}  // namespace
}  // namespace intarsia::rules
