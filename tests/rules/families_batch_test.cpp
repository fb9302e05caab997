#include <gtest/gtest.h>

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

/// A call with two tensors.
Asked two(const Ints& a, const Ints& b) { return {"aten::mm", {sized(a), sized(b)}}; }

TEST(FamiliesBatch, CapitalLettersAndWhatComesBeforeAreSharded) {
  const Rule rule = batched("op", "MK,KN -> MN");
  const Asked asked = two({5, 2, 3}, {3, 4});
  EXPECT_EQ(texts(rule.rows(asked)),
            (Texts{"S(0),R -> S(0)", "S(2),S(0) -> P(sum)", "S(1),R -> S(1)", "R,S(1) -> S(2)"}));
  EXPECT_EQ(rule.sizes(asked), (Sizes{{5, 2, 4}}));
  EXPECT_EQ(rule.name, "op");
}

TEST(FamiliesBatch, PlusIsJointLinearity) {
  EXPECT_EQ(texts(batched("op", "nn,nK+ -> nK").rows(two({3, 3}, {3, 4}))),
            (Texts{"R,S(1) -> S(1)", "R,P -> P"}));
  EXPECT_EQ(texts(batched("op", "n+,n+ -> n,n").rows(two({3}, {3}))), (Texts{"P,P -> P,P"}));
}

TEST(FamiliesBatch, DimensionsBeforeBroadcast) {
  const Rule rule = batched("op", "nn,nK -> nK");
  const Asked asked = two({2, 1, 3, 3}, {4, 3, 5});
  EXPECT_EQ(texts(rule.rows(asked)), (Texts{"S(0),R -> S(0)", "R,S(0) -> S(1)", "R,S(2) -> S(3)"}));
  EXPECT_EQ(rule.sizes(asked), (Sizes{{2, 4, 3, 5}}));
  // Of one matrix each, nothing is sharded but K.
  EXPECT_EQ(texts(rule.rows(two({1, 3, 3}, {1, 3, 5}))), (Texts{"R,S(2) -> S(2)"}));
}

TEST(FamiliesBatch, ResultsMayHaveOtherLengths) {
  const Asked svd("aten::_linalg_svd", {sized({2, 5, 3})});
  EXPECT_EQ(batched("op", "mn -> mk,k,kn").sizes(svd), (Sizes{{2, 5, 3}, {2, 3}, {2, 3, 3}}));
  const Rule values = batched("op", "mn -> !0,k,4");
  EXPECT_EQ(values.sizes(svd), (Sizes{{0}, {2, 3}, {2, 4}}));
  EXPECT_EQ(texts(values.rows(svd)), (Texts{"S(0) -> R,S(0),S(0)"}));
  // Optional tensors that were not passed.
  const Asked pinv("aten::linalg_pinv.atol_rtol_tensor", {sized({2, 5, 3}), unset(), sized({2})});
  const Rule inverse = batched("op", "mn,, -> nm");
  EXPECT_EQ(inverse.sizes(pinv), (Sizes{{2, 3, 5}}));
  EXPECT_EQ(texts(inverse.rows(pinv)), (Texts{"S(0),R,S(0) -> S(0)"}));
}

TEST(FamiliesBatch, WhatDoesNotFitRunsOnFullTensors) {
  const Rule rule = batched("op", "nn,nK -> nK");
  for (const Asked& asked :
       {two({3, 4}, {3, 5}), two({3, 3}, {2, 5}), two({3, 3}, {3}), two({2, 3, 3}, {4, 3, 5})}) {
    EXPECT_EQ(texts(rule.rows(asked)), Texts{});
    EXPECT_EQ(rule.sizes(asked), Sizes{});
  }
  const Rule cholesky = batched("op", "nn -> nn,");
  const auto asked = [](bool check_errors) {
    return Asked("aten::linalg_cholesky_ex", {sized({2, 3, 3}), false, check_errors});
  };
  EXPECT_EQ(cholesky.sizes(asked(false)), (Sizes{{2, 3, 3}, {2}}));
  EXPECT_EQ(cholesky.sizes(asked(true)), Sizes{});
}

TEST(FamiliesBatch, AMemoryOrderIsForOneDimensionBefore) {
  const Rule rule = batched("op", "nn,nK -> nK", {.memory_order = {0, 2, 1}});
  EXPECT_EQ(rule.sizes(two({3, 3}, {3, 5})), Sizes{});
  EXPECT_EQ(rule.sizes(two({2, 3, 3}, {3, 5})), (Sizes{{2, 3, 5}}));
  EXPECT_EQ(rule.sizes(two({2, 2, 3, 3}, {3, 5})), Sizes{});
}

TEST(FamiliesBatch, IndexRulesOfUsersAreChecked) {
  const Rule rule = index_rule("mylib::mm", "MK,KN -> MN");
  EXPECT_EQ(rule.name, "mylib::mm");
  EXPECT_EQ(texts(rule.rows(two({2, 3}, {3, 4})))[0], "S(1),S(0) -> P(sum)");
  EXPECT_NO_THROW(index_rule("mylib::op", "mn -> mk,2"));
  expect_error<ValueError>([] { index_rule("mylib::op", "MK,KN"); },
                           {"[index_rule]", "'MK,KN' has no ->", "`MK,KN -> MN`"});
  expect_error<ValueError>([] { index_rule("mylib::op", "MK,KN -> MX"); },
                           {"'MK,KN -> MX'", "the index X, which no operand has"});
  expect_error<ValueError>([] { index_rule("mylib::op", "Mn -> Mk"); }, {"the index k"});
  expect_error<ValueError>(
      [] {
        index_rule("mylib::op", "MK -> M").rows(two({2, 3}, {3, 4}));
      },
      {"'MK -> M' is for 1 operands", "mylib::op has 2"});
}

TEST(FamiliesBatch, FactorsDependOnWhatIsAskedFor) {
  const at::Tensor a = sized({5, 3});
  EXPECT_EQ(svd_formula(Asked("aten::_linalg_svd", {a})), "mn -> mk,k,kn");
  EXPECT_EQ(svd_formula(Asked("aten::_linalg_svd", {a, true})), "mn -> mm,k,nn");
  EXPECT_EQ(svd_formula(Asked("aten::_linalg_svd", {a, true, false})), "mn -> !0,k,!0");
  EXPECT_EQ(qr_formula(Asked("aten::linalg_qr", {a})), "mn -> mk,kn");
  EXPECT_EQ(qr_formula(Asked("aten::linalg_qr", {a, "complete"})), "mn -> mm,mn");
  EXPECT_EQ(qr_formula(Asked("aten::linalg_qr", {a, "r"})), "mn -> !0,kn");
  EXPECT_EQ(eigh_formula(Asked("aten::_linalg_eigh", {a})), "nn -> n,nn");
  EXPECT_EQ(eigh_formula(Asked("aten::_linalg_eigh", {a, "L", false})), "nn -> n,!0");
  EXPECT_EQ(lu_formula(Asked("aten::linalg_lu", {a})), "mn -> mm,mk,kn");
  EXPECT_EQ(lu_formula(Asked("aten::linalg_lu", {a, false})), "mn -> !0,mk,kn");
  const auto unpack = [&](bool data, bool pivots) {
    return lu_unpack_formula(Asked("aten::lu_unpack", {a, sized({3}), data, pivots}));
  };
  EXPECT_EQ(unpack(true, true), "mn,k -> mm,mk,kn");
  EXPECT_EQ(unpack(false, true), "mn,k -> mm,!0,!0");
  EXPECT_EQ(unpack(true, false), "mn,k -> !0,mk,kn");
}

TEST(FamiliesBatch, SolversTellMatricesFromVectors) {
  const auto solve = [](const Ints& a, const Ints& b, bool left = true) {
    return solve_formula(Asked("aten::_linalg_solve_ex", {sized(a), sized(b), left}));
  };
  const std::string by_matrix = "nn,nk -> nk,nn,n,";
  EXPECT_EQ(solve({2, 3, 3}, {2, 3, 4}), by_matrix);
  EXPECT_EQ(solve({2, 3, 3}, {1, 3, 4}), by_matrix);
  EXPECT_EQ(solve({2, 3, 3}, {3, 4}), by_matrix);
  EXPECT_EQ(solve({1, 3, 3}, {2, 3, 4}), "");         // A would be widened
  EXPECT_EQ(solve({2, 3, 3}, {2, 3}), "");            // two vectors
  EXPECT_EQ(solve({2, 3, 3}, {3}), "");               // one
  EXPECT_EQ(solve({3, 3}, {3, 4}), "");               // no batch
  EXPECT_EQ(solve({2, 3, 3}, {2, 3, 4}, false), "");  // X A = B
}

TEST(FamiliesBatch, OtherSolversDependOnTheSide) {
  const at::Tensor a = sized({2, 3, 3});
  const at::Tensor b = sized({2, 3, 4});
  const at::Tensor pivots = sized({2, 3}, at::kInt);
  EXPECT_EQ(lu_solve_formula(Asked("aten::linalg_lu_solve", {a, pivots, b, true})),
            "nn,n,nK+ -> nK");
  EXPECT_EQ(lu_solve_formula(Asked("aten::linalg_lu_solve", {a, pivots, b, false})), "");
  const auto triangular = [&](bool left) {
    return solve_triangular_formula(Asked("aten::linalg_solve_triangular", {a, b, true, left}));
  };
  EXPECT_EQ(triangular(true), "nn,nK+ -> nK");
  EXPECT_EQ(triangular(false), "nn,Kn+ -> Kn");
  EXPECT_EQ(ormqr_formula(Asked("aten::ormqr", {a, pivots, b, true})), "mn,k,mC+ -> mC");
  EXPECT_EQ(ormqr_formula(Asked("aten::ormqr", {a, pivots, b, false})), "mn,k,Cm+ -> Cm");
  const auto least_squares = [&](const at::Tensor& right, const c10::IValue& driver) {
    return lstsq_formula(Asked("aten::linalg_lstsq", {a, right, unset(), driver}));
  };
  EXPECT_EQ(least_squares(b, unset()), "mn,mc -> nc,!0,,!0");
  EXPECT_EQ(least_squares(b, "gelsy"), "mn,mc -> nc,!0,,!0");
  EXPECT_EQ(least_squares(b, "gelsd"), "");
  EXPECT_EQ(least_squares(sized({2, 3}), unset()), "");
}

TEST(FamiliesBatch, FourierTransformsShardTheOtherDimensions) {
  const at::Tensor x = sized({2, 3, 7});
  EXPECT_EQ(texts(fft(Asked("aten::_fft_c2c", {x, Ints{-1, 0}, 0, true}))),
            (Texts{"S(1) -> S(1)", "P -> P"}));
  const auto sizes = [&](const Ints& dims) {
    return fft_sizes(Asked("aten::_fft_c2c", {x, dims, 0, true}));
  };
  EXPECT_EQ(sizes({1, 2}), (Sizes{{2, 3, 7}}));
  EXPECT_EQ(sizes({}), (Sizes{{2, 3, 7}}));
  EXPECT_EQ(sizes({2, 1}), Sizes{});  // the result says how it is stored
  EXPECT_EQ(sizes({0}), Sizes{});
  EXPECT_EQ(fft_sizes(Asked("aten::_fft_r2c", {x, Ints{2}, 0, true})), (Sizes{{2, 3, 4}}));
  EXPECT_EQ(fft_sizes(Asked("aten::_fft_r2c", {sized({6}), Ints{0}, 0, true})), (Sizes{{4}}));
  EXPECT_EQ(fft_sizes(Asked("aten::_fft_r2c", {x, Ints{2}, 0, false})), (Sizes{{2, 3, 7}}));
  EXPECT_EQ(fft_sizes(Asked("aten::_fft_c2r", {x, Ints{2}, 0, 12})), (Sizes{{2, 3, 12}}));
}

}  // namespace
}  // namespace intarsia::rules
