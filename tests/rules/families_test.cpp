#include "rules/families.h"

#include <ATen/core/Reduction.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "rules/asked.h"

namespace intarsia::rules {
namespace {

using testing::Asked;
using testing::expect_error;
using testing::indices;
using testing::Ints;
using testing::partial_rows;
using testing::sized;
using testing::Texts;
using testing::texts;
using testing::unset;
using Dims = std::vector<std::size_t>;

TEST(Families, RowsAreMadeOfPlaces) {
  EXPECT_EQ(split({1, -1}, {0, -1}).to_string(), "S(1),R -> S(0),P(sum)");
  EXPECT_EQ(split({1}, {-1}, Placement::replicate()).to_string(), "S(1) -> R");
  EXPECT_EQ(linear(3, {0, 2}, 2).to_string(), "P,R,P -> P,P");
  EXPECT_EQ(moved(2, {1}).to_string(), "R,P(*) -> P(*)");
  const Row row = by_formula(split({0}, {0}), 0.5);
  EXPECT_EQ(row.to_string(), "S(0) -> S(0) by formula");
  EXPECT_EQ(row.formula, 0.5);
}

TEST(Families, HelpersCountAndName) {
  EXPECT_EQ(element_count({2, 3, 4}), 24);
  EXPECT_EQ(element_count({2, 3, 4}, 1), 12);
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(shape_of({2, 0}), (Shape{2, 0}));
  EXPECT_EQ(base_name(Asked("aten::add_.Tensor", {sized({2}), sized({2})})), "add");
  const Asked norm("aten::native_layer_norm", {sized({2, 3}), Ints{3}, unset(), sized({3}), 0.1});
  EXPECT_TRUE(given(norm, 0));
  EXPECT_FALSE(given(norm, 1));
  EXPECT_TRUE(given(norm, 2));
  EXPECT_FALSE(given(norm, 3));
  EXPECT_FALSE(is_backward(norm));
}

// ---- pointwise ----

TEST(Families, PointwiseShardsWhatIsNotBroadcast) {
  const Asked add("aten::add.Tensor", {sized({2, 1, 5}), sized({4, 1})});
  EXPECT_EQ(texts(pointwise(add)),
            (Texts{"S(0),R -> S(0)", "R,S(0) -> S(1)", "S(2),R -> S(2)", "P,P -> P"}));
  EXPECT_EQ(broadcast_sizes(add), (Sizes{{2, 4, 5}}));
  // Lengths of 1 are not sharded, those of 0 are.
  EXPECT_EQ(texts(pointwise(Asked("aten::relu", {sized({1, 0})}))),
            (Texts{"S(1) -> S(1)", "P(max) -> P(max)", "P(min) -> P(min)"}));
  expect_error<ValueError>(
      [] {
        pointwise(Asked("aten::add.Tensor", {sized({2, 3}), sized({2})}));
      },
      {"[aten::add]", "sizes (2) and (2,3) do not broadcast"});
}

TEST(Families, PointwiseIsLinearInWhatTheOpIs) {
  const at::Tensor x = sized({4});
  const auto partial = [](const char* op, const std::vector<c10::IValue>& args) {
    return partial_rows(pointwise(Asked(op, args)));
  };
  EXPECT_EQ(partial("aten::add.Scalar", {x, 1}), Texts{});  // each rank would add it
  EXPECT_EQ(partial("aten::mul.Tensor", {x, x}), (Texts{"P,R -> P", "R,P -> P"}));
  EXPECT_EQ(partial("aten::mul.Scalar", {x, 2}), (Texts{"P -> P"}));
  EXPECT_EQ(partial("aten::div.Tensor", {x, x}), (Texts{"P,R -> P"}));
  EXPECT_EQ(partial("aten::div.Tensor_mode", {x, x, "floor"}), Texts{});
  EXPECT_EQ(partial("aten::div.Tensor_mode", {x, x, unset()}), (Texts{"P,R -> P"}));
  EXPECT_EQ(partial("aten::where.self", {sized({4}, at::kBool), x, x}), (Texts{"R,P,P -> P"}));
  EXPECT_EQ(partial("aten::addcmul", {x, x, x}), (Texts{"P,P,R -> P", "P,R,P -> P"}));
  EXPECT_EQ(partial("aten::addcdiv", {x, x, x}), (Texts{"P,P,R -> P"}));
  EXPECT_EQ(partial("aten::lerp.Scalar", {x, x, 0.5}), (Texts{"P,P -> P"}));
  EXPECT_EQ(partial("aten::masked_fill.Scalar", {x, sized({4}, at::kBool), 0}), Texts{});
  EXPECT_EQ(partial("aten::threshold_backward", {x, x, 0}), (Texts{"P,R -> P"}));
  EXPECT_EQ(partial("aten::clone", {x}), (Texts{"P(*) -> P(*)"}));
  EXPECT_EQ(partial("aten::pow.Tensor_Tensor", {x, x}), Texts{});
}

TEST(Families, PartialValuesAreNotRounded) {
  const auto to = [](at::ScalarType type) {
    return partial_rows(pointwise(Asked("aten::_to_copy", {sized({4}), type})));
  };
  EXPECT_EQ(to(at::kDouble), (Texts{"P -> P"}));
  EXPECT_EQ(to(at::kInt), Texts{});
  EXPECT_EQ(to(at::kBool), Texts{});
  EXPECT_EQ(partial_rows(pointwise(Asked("aten::copy", {sized({4}), sized({4})}))),
            (Texts{"P,P -> P"}));
  EXPECT_EQ(partial_rows(pointwise(Asked("aten::copy", {indices({4}), sized({4})}))), Texts{});
}

TEST(Families, MonotoneOpsPassExtremes) {
  const auto partial = [](const char* op, at::ScalarType type) {
    return partial_rows(pointwise(Asked(op, {sized({4}, type)})));
  };
  EXPECT_EQ(partial("aten::exp", at::kFloat), (Texts{"P(max) -> P(max)", "P(min) -> P(min)"}));
  EXPECT_EQ(partial("aten::neg", at::kFloat),
            (Texts{"P -> P", "P(max) -> P(min)", "P(min) -> P(max)"}));
  EXPECT_EQ(partial("aten::neg", at::kLong), (Texts{"P -> P"}));
  EXPECT_EQ(partial("aten::log", at::kFloat), Texts{});
  EXPECT_EQ(partial("aten::abs", at::kFloat), Texts{});
}

// ---- products ----

TEST(Families, ProductsAreSumsOverTheirCommonIndex) {
  const Asked any("aten::mm", {sized({2, 3}), sized({3, 4})});
  EXPECT_EQ(texts(mm(any)), (Texts{"S(0),R -> S(0)", "S(1),S(0) -> P(sum)", "R,S(1) -> S(1)",
                                   "P,R -> P", "R,P -> P"}));
  EXPECT_EQ(texts(bmm(any)), (Texts{"S(0),S(0) -> S(0)", "S(1),R -> S(1)", "S(2),S(1) -> P(sum)",
                                    "R,S(2) -> S(2)", "P,R -> P", "R,P -> P"}));
  EXPECT_EQ(texts(mv(any)),
            (Texts{"S(0),R -> S(0)", "S(1),S(0) -> P(sum)", "P,R -> P", "R,P -> P"}));
  EXPECT_EQ(texts(dot(any)), (Texts{"S(0),S(0) -> P(sum)", "P,R -> P", "R,P -> P"}));
}

TEST(Families, WhatIsAddedToAProductIsShardedAlike) {
  const auto with = [](const Ints& added) {
    return texts(addmm(Asked("aten::addmm", {sized(added), sized({2, 3}), sized({3, 4})})));
  };
  EXPECT_EQ(with({2, 4}), (Texts{"S(0),S(0),R -> S(0)", "P(sum),S(1),S(0) -> P(sum)",
                                 "S(1),R,S(1) -> S(1)", "P,P,R -> P", "P,R,P -> P"}));
  EXPECT_EQ(with({4})[0], "R,S(0),R -> S(0)");
  EXPECT_EQ(with({4})[2], "S(0),R,S(1) -> S(1)");
  EXPECT_EQ(with({2, 1})[0], "S(0),S(0),R -> S(0)");
  EXPECT_EQ(with({2, 1})[2], "R,R,S(1) -> S(1)");
  EXPECT_EQ(with({})[1], "P(sum),S(1),S(0) -> P(sum)");
  EXPECT_EQ(
      texts(baddbmm(Asked("aten::baddbmm", {sized({1, 4}), sized({5, 2, 3}), sized({5, 3, 4})}))),
      (Texts{"R,S(0),S(0) -> S(0)", "R,S(1),R -> S(1)", "P(sum),S(2),S(1) -> P(sum)",
             "S(1),R,S(2) -> S(2)", "P,P,R -> P", "P,R,P -> P"}));
}

TEST(Families, OtherSumsWithProducts) {
  const auto of_mv = [](const Ints& added) {
    return texts(addmv(Asked("aten::addmv", {sized(added), sized({2, 3}), sized({3})})));
  };
  EXPECT_EQ(of_mv({2}), (Texts{"S(0),S(0),R -> S(0)", "P(sum),S(1),S(0) -> P(sum)", "P,P,R -> P",
                               "P,R,P -> P"}));
  EXPECT_EQ(of_mv({1}), (Texts{"P,P,R -> P", "P,R,P -> P"}));  // it would have to be broadcast
  const Asked outer("aten::addr", {sized({3}), sized({2}), sized({3})});
  EXPECT_EQ(texts(addr(outer)),
            (Texts{"R,S(0),R -> S(0)", "S(0),R,S(0) -> S(1)", "P,P,R -> P", "P,R,P -> P"}));
  EXPECT_EQ(addr_sizes(outer), (Sizes{{2, 3}}));
  const Asked batches("aten::addbmm", {sized({2, 4}), sized({5, 2, 3}), sized({5, 3, 4})});
  EXPECT_EQ(texts(addbmm(batches))[0], "P(sum),S(0),S(0) -> P(sum)");
  EXPECT_EQ(addbmm_sizes(batches), (Sizes{{2, 4}}));
  EXPECT_EQ(addbmm_sizes(Asked("aten::addbmm", {sized({2}), sized({2, 3}), sized({3, 4})})),
            Sizes{});
}

TEST(Families, SizesOfProducts) {
  const auto of = [](const char* op, const Ints& a, const Ints& b) {
    return matmul_sizes(Asked(op, {sized(a), sized(b)}));
  };
  EXPECT_EQ(of("aten::mm", {2, 3}, {3, 4}), (Sizes{{2, 4}}));
  EXPECT_EQ(of("aten::bmm", {5, 2, 0}, {5, 0, 4}), (Sizes{{5, 2, 4}}));
  EXPECT_EQ(of("aten::mv", {2, 3}, {3}), (Sizes{{2}}));
  EXPECT_EQ(of("aten::dot", {3}, {3}), Sizes{Shape{}});
  EXPECT_EQ(matmul_sizes(Asked("aten::addmm", {sized({4}), sized({2, 3}), sized({3, 4})})),
            (Sizes{{2, 4}}));
  expect_error<ValueError>(
      [&] {
        of("aten::mm", {2, 3}, {4, 3});
      },
      {"[aten::mm]", "sizes (2,3) and (4,3) cannot be multiplied"});
  expect_error<ValueError>([&] { of("aten::bmm", {5, 2, 3}, {6, 3, 4}); }, {"(5,2,3)"});
  expect_error<ValueError>([&] { of("aten::mm", {3}, {3, 4}); }, {"cannot be multiplied"});
  expect_error<ValueError>([&] { of("aten::mm", {5, 2, 3}, {3, 4}); }, {"cannot be multiplied"});
}

TEST(Families, GroupedProductsKeepTheirGroups) {
  const auto asked = [](const Ints& a, const Ints& b, const c10::IValue& offsets) {
    return Asked("aten::_grouped_mm", {sized(a), sized(b), offsets});
  };
  const at::Tensor offsets = sized({3}, at::kInt);
  // Rows 0..8 belong to three groups: they and the groups stay together.
  const Asked rows = asked({8, 2}, {3, 2, 4}, offsets);
  EXPECT_EQ(texts(grouped_mm(rows)), (Texts{"S(1),S(1),R,R -> P(sum)", "R,S(2),R,R -> S(1)",
                                            "P,R,R,R -> P", "R,P,R,R -> P"}));
  EXPECT_EQ(grouped_mm_sizes(rows), (Sizes{{8, 4}}));
  EXPECT_EQ(grouped_mm_sizes(asked({3, 2, 4}, {4, 8}, offsets)), (Sizes{{2, 8}}));
  EXPECT_EQ(grouped_mm_sizes(asked({2, 8}, {8, 4}, offsets)), (Sizes{{3, 2, 4}}));
  const Asked batch = asked({3, 2, 4}, {3, 4, 5}, unset());
  EXPECT_EQ(texts(grouped_mm(batch))[0], "S(0),S(0),R,R -> S(0)");
  EXPECT_EQ(grouped_mm_sizes(batch), (Sizes{{3, 2, 5}}));
  EXPECT_EQ(texts(grouped_mm(Asked("aten::_grouped_mm",
                                   {sized({8, 2}), sized({3, 2, 4}), offsets, sized({3, 4})}))),
            Texts{});  // with a bias
}

TEST(Families, VectorsOfACrossProductAreNotSplit) {
  EXPECT_EQ(texts(cross(Asked("aten::linalg_cross", {sized({2, 3}), sized({4, 1, 3})}))),
            (Texts{"R,S(0) -> S(0)", "S(0),R -> S(1)", "P,R -> P", "R,P -> P"}));
  EXPECT_EQ(texts(cross(Asked("aten::linalg_cross", {sized({3, 2}), sized({3, 2}), 0})))[0],
            "S(1),S(1) -> S(1)");
}

// ---- reductions ----

TEST(Families, ReducedDimensionsBecomePartial) {
  const auto of = [](bool keepdim) {
    return Asked("aten::sum.dim_IntList", {sized({2, 3, 4}), Ints{-2}, keepdim});
  };
  EXPECT_EQ(texts(sum(of(false))),
            (Texts{"S(0) -> S(0)", "S(1) -> P(sum)", "S(2) -> S(1)", "P -> P"}));
  EXPECT_EQ(texts(sum(of(true))),
            (Texts{"S(0) -> S(0)", "S(1) -> P(sum)", "S(2) -> S(2)", "P -> P"}));
  EXPECT_EQ(reduced_sizes(of(false)), (Sizes{{2, 4}}));
  EXPECT_EQ(reduced_sizes(of(true)), (Sizes{{2, 1, 4}}));
  const Asked all("aten::sum", {sized({2, 3})});
  EXPECT_EQ(texts(sum(all)), (Texts{"S(0) -> P(sum)", "S(1) -> P(sum)", "P -> P"}));
  EXPECT_EQ(reduced_sizes(all), Sizes{Shape{}});
}

TEST(Families, EachReductionHasItsKindOfPartial) {
  const at::Tensor x = sized({2, 3});
  EXPECT_EQ(texts(sum_of_parts(Asked("aten::nansum", {x, Ints{1}}))),
            (Texts{"S(0) -> S(0)", "S(1) -> P(sum)"}));
  EXPECT_EQ(texts(extremum(Asked("aten::amax", {x, Ints{1}})))[1], "S(1) -> P(max)");
  EXPECT_EQ(texts(extremum(Asked("aten::amin", {x, Ints{1}})))[1], "S(1) -> P(min)");
  EXPECT_EQ(texts(extremum(Asked("aten::max.other", {x, x}))),
            (Texts{"S(0),S(0) -> S(0)", "S(1),S(1) -> S(1)"}));
  EXPECT_EQ(texts(extremum(Asked("aten::max.dim", {x, 1})))[1], "S(1) -> R,P(min) by formula");
  EXPECT_EQ(texts(logical(Asked("aten::any.dim", {x, 1})))[1], "S(1) -> P(or)");
  EXPECT_EQ(texts(logical(Asked("aten::all.dim", {x, 1})))[1], "S(1) -> P(and)");
  EXPECT_EQ(texts(product(Asked("aten::prod.dim_int", {x, 1})))[1], "S(1) -> P(prod)");
  // Over no dimension at all.
  EXPECT_EQ(texts(logical(Asked("aten::any.dims", {x, Ints{}}))),
            (Texts{"S(0) -> S(0)", "S(1) -> S(1)"}));
}

TEST(Families, BinsAddUpWhereTheirBoundsAreKnown) {
  const Asked known("aten::histc", {sized({6}), 5, 0, 1});
  EXPECT_EQ(texts(histc(known)), (Texts{"S(0) -> P(sum)"}));
  EXPECT_EQ(histc_sizes(known), (Sizes{{5}}));
  EXPECT_EQ(texts(histc(Asked("aten::histc", {sized({6}), 5, 0, 0}))), Texts{});
}

TEST(Families, OrderStatisticsNeedAllOfADimension) {
  const Asked kth("aten::kthvalue", {sized({2, 3, 4}), 1, 0});
  EXPECT_EQ(texts(reduce_unsharded(kth)), (Texts{"S(1) -> S(0),S(0)", "S(2) -> S(1),S(1)"}));
  EXPECT_EQ(reduced_sizes(kth), (Sizes{{3, 4}, {3, 4}}));
}

TEST(Families, PlacesAndSharesOfReductions) {
  const Asked sum("aten::sum.dim_IntList", {sized({2, 3, 4, 0}), Ints{0, 2}});
  const Dims both{0, 2};
  EXPECT_EQ(after_reduction(sum, both, 2), -1);
  EXPECT_EQ(after_reduction(sum, both, 1), 0);
  EXPECT_EQ(after_reduction(sum, both, 3), 1);
  EXPECT_EQ(after_reduction(sum, std::nullopt, 3), -1);
  EXPECT_EQ(reduced_share(sum, both), 1.0 / 8);
  EXPECT_EQ(reduced_share(sum, std::nullopt), 1.0 / 24);  // a length of 0 counts as 1
  Rows rows;
  add_reduced(sum, Dims{2}, {Placement::replicate()}, 0.5, rows);
  EXPECT_EQ(texts(rows), (Texts{"S(2) -> R by formula"}));
  EXPECT_EQ(rows[0].formula, 0.5);
}

// ---- along a dimension ----

TEST(Families, OpsAlongADimensionShardTheOthers) {
  EXPECT_EQ(texts(along(Asked("aten::cummax", {sized({2, 3, 4}), 1}))),
            (Texts{"S(0) -> S(0),S(0)", "S(2) -> S(2),S(2)"}));
  EXPECT_EQ(texts(along(Asked("aten::cumsum", {sized({2, 3}), -1}))),
            (Texts{"S(0) -> S(0)", "P -> P"}));
  EXPECT_EQ(texts(along(Asked("aten::sort", {sized({})}))), Texts{});
  const Asked topk("aten::topk", {sized({2, 9}), 4});
  EXPECT_EQ(along_sizes(topk), (Sizes{{2, 4}, {2, 4}}));
  EXPECT_EQ(along_sizes(Asked("aten::cumsum", {sized({2, 9}), 0})), (Sizes{{2, 9}}));
}

TEST(Families, ScansShardTheirDimensionToo) {
  EXPECT_EQ(texts(scan(Asked("aten::cumsum", {sized({2, 3}), 1}))),
            (Texts{"S(0) -> S(0)", "P -> P", "S(1) -> S(1)"}));
  EXPECT_EQ(texts(scan(Asked("aten::logcumsumexp", {sized({2, 3}), 0}))),
            (Texts{"S(1) -> S(1)", "S(0) -> S(0)"}));
  EXPECT_EQ(texts(scan(Asked("aten::logcumsumexp", {sized({}), 0}))), Texts{});
}

TEST(Families, SoftmaxReducesTwoNumbersForEachSlice) {
  const Rows forward = softmax(Asked("aten::_softmax", {sized({2, 8}), 1, false}));
  EXPECT_EQ(texts(forward), (Texts{"S(0) -> S(0)", "S(1) -> S(1) by formula"}));
  EXPECT_EQ(forward[1].formula, 2.0 / 8);
  const Rows backward = softmax(
      Asked("aten::_softmax_backward_data", {sized({2, 8}), sized({2, 8}), -1, at::kFloat}));
  EXPECT_EQ(texts(backward),
            (Texts{"S(0),S(0) -> S(0)", "P,R -> P", "S(1),S(1) -> S(1) by formula"}));
  EXPECT_EQ(backward[2].formula, 1.0 / 8);
  const Rows sums = logsumexp(Asked("aten::logsumexp", {sized({2, 8}), Ints{1}}));
  EXPECT_EQ(texts(sums), (Texts{"S(0) -> S(0)", "S(1) -> R by formula"}));
  EXPECT_EQ(sums[1].formula, 2.0 / 8);
}

// ---- losses ----

TEST(Families, LossesAddUpUnlessTheyAreKeptApart) {
  const auto loss = [](std::int64_t reduction) {
    return Asked("aten::mse_loss", {sized({2, 3}), sized({2, 3}), reduction});
  };
  EXPECT_EQ(texts(loss_over_all(loss(at::Reduction::Mean))),
            (Texts{"S(0),S(0) -> P(sum)", "S(1),S(1) -> P(sum)"}));
  EXPECT_EQ(texts(loss_over_all(loss(at::Reduction::None))),
            (Texts{"S(0),S(0) -> S(0)", "S(1),S(1) -> S(1)"}));
  EXPECT_EQ(loss_sizes(loss(at::Reduction::Sum)), Sizes{Shape{}});
  EXPECT_EQ(loss_sizes(loss(at::Reduction::None)), (Sizes{{2, 3}}));
  EXPECT_EQ(texts(loss_over_all(Asked("aten::mse_loss", {sized({2, 3}), sized({3})}))), Texts{});
}

TEST(Families, GradientsOfLossesAreShardedLikeTheirInput) {
  const auto backward = [](const Ints& grad, std::int64_t reduction) {
    return Asked("aten::mse_loss_backward", {sized(grad), sized({2, 3}), sized({2, 3}), reduction});
  };
  EXPECT_EQ(texts(loss_over_all(backward({}, at::Reduction::Mean))),
            (Texts{"R,S(0),S(0) -> S(0)", "R,S(1),S(1) -> S(1)", "P,R,R -> P"}));
  EXPECT_EQ(texts(loss_over_all(backward({2, 3}, at::Reduction::None)))[1],
            "S(1),S(1),S(1) -> S(1)");
  EXPECT_EQ(loss_sizes(backward({}, at::Reduction::Mean)), (Sizes{{2, 3}}));
}

}  // namespace
}  // namespace intarsia::rules
