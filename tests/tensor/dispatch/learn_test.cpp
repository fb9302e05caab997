#include "tensor/dispatch/learn.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/simulate.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::expect_error;
using testing::FramedCall;
using testing::Ints;
using testing::laid_out;
using testing::operands_of;
using testing::row_of;
using testing::unmoved;

// An op that runs on no made-up values, and of which torch knows nothing without values.
TORCH_LIBRARY(intarsia_learn_test, m) { m.def("picky(Tensor a, Tensor b) -> Tensor"); }
TORCH_LIBRARY_IMPL(intarsia_learn_test, CPU, m) {
  m.impl("picky", [](const at::Tensor& a, const at::Tensor&) {
    TORCH_CHECK(a.numel() == 8, "of 8 elements alone");
    return a.clone();
  });
}

/// A decision whose results are said to have the first operand's dtype.
Decision guessed(const Frame& f) {
  Decision d = unmoved(f);
  d.results.assign(f.info.returns, {Result::Kind::tensor, {d.in[0]}, 0});
  return d;
}

at::ScalarType dtype_of_result(const Decision& d, std::size_t r = 0) {
  return d.results[r].specs[0]->dtype;
}

TEST(Learn, DtypesAreThoseThatTheOpReturned) {
  const Lockstep lockstep("[a=2]");
  const FramedCall call("aten::topk", "", {laid_out(counting({4}), "R", lockstep), 2});
  Decision d = guessed(call.frame);
  take_dtypes({row_of({1}), at::tensor({1}, at::kLong)}, d);
  EXPECT_EQ(dtype_of_result(d, 0), at::kDouble);
  EXPECT_EQ(dtype_of_result(d, 1), at::kLong);
  EXPECT_EQ(d.results[1].specs[0]->sizes, (Shape{4})) << "nothing else is";
  take_dtypes({at::Tensor(), row_of({1})}, d);
  EXPECT_FALSE(d.results[0].specs[0]) << "it returns none";
  Decision written = unmoved(call.frame);
  written.results = {{Result::Kind::written, {}, 0}};
  take_dtypes({row_of({1})}, written);
  EXPECT_TRUE(written.results[0].specs.empty());
}

TEST(Learn, ARankWithoutElementsMakesUpSome) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 2}), "S(0)", lockstep);
  const FramedCall call("aten::argmax", "", {x, 0});  // not of a dimension without elements
  Decision d = guessed(call.frame);
  const LocalOperands operands = operands_of(call.frame, d);
  ASSERT_EQ(operands.pieces[0][1].numel(), 0);
  learn_dtypes(operands, 1, d);
  EXPECT_EQ(dtype_of_result(d), at::kLong);
  const FramedCall norm("aten::native_group_norm", "",
                        {laid_out(at::ones({1, 2}, at::kBFloat16), "S(0)", lockstep), at::ones({2}),
                         at::ones({2}), 1, 2, 1, 1, 1e-5});
  Decision mixed = guessed(norm.frame);
  mixed.local.arguments = {{{3, 1}}, {{3, 0}}};  // the batch of rank 1 has no elements
  learn_dtypes(operands_of(norm.frame, mixed), 1, mixed);
  EXPECT_EQ(dtype_of_result(mixed, 0), at::kBFloat16);
  EXPECT_EQ(dtype_of_result(mixed, 1), at::kFloat);
}

TEST(Learn, WhereMadeUpSizesDoNotFitTheGuessStays) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor table = laid_out(counting({1, 2}), "S(0)", lockstep);
  const FramedCall call("aten::embedding", "", {table, at::tensor({4}, at::kLong)});
  Decision d = guessed(call.frame);
  learn_dtypes(operands_of(call.frame, d), 1, d);
  EXPECT_EQ(dtype_of_result(d), at::kDouble);
}

class LearnWithoutValues : public ::testing::Test {
 protected:
  ~LearnWithoutValues() override { world_->close(); }

  at::Tensor tensor(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return zeros(sizes, Layout::parse("[a=2] S(0)"), *world_, dtype);
  }

  /// The dtype of each result, after it was learned.
  static std::vector<at::ScalarType> learned(const FramedCall& call) {
    Decision d = guessed(call.frame);
    learn_without_values(operands_of(call.frame, d), 0, d);
    std::vector<at::ScalarType> out;
    for (std::size_t r = 0; r < d.results.size(); ++r) out.push_back(dtype_of_result(d, r));
    return out;
  }

  const std::shared_ptr<World> world_ = simulate({.size = 2});
};

using Types = std::vector<at::ScalarType>;

TEST_F(LearnWithoutValues, FromARunOnTheMetaDevice) {
  EXPECT_EQ(learned(FramedCall("aten::eq", "Scalar", {tensor({4}), 1})), Types{at::kBool});
  EXPECT_EQ(learned(FramedCall("aten::topk", "", {tensor({4, 3}), 2})),
            (Types{at::kFloat, at::kLong}));
}

TEST_F(LearnWithoutValues, FromARunOnFewElementsWhereThereIsNoMetaKernel) {
  const at::Tensor weight = at::ones({6});
  // A single element does not fit the normalized sizes; one row does.
  const FramedCall call("aten::native_layer_norm", "",
                        {tensor({4, 6}, at::kBFloat16), Ints{6}, weight, weight, 1e-5});
  EXPECT_EQ(learned(call), (Types{at::kBFloat16, at::kFloat, at::kFloat}));
}

TEST_F(LearnWithoutValues, FromTheOperandsWhereNothingRuns) {
  const FramedCall alike("intarsia_learn_test::picky", "",
                         {tensor({4}, at::kHalf), tensor({4}, at::kHalf)});
  EXPECT_EQ(learned(alike), Types{at::kHalf});
  const FramedCall mixed("intarsia_learn_test::picky", "", {tensor({4}, at::kHalf), tensor({4})});
  expect_error<ValueError>(
      [&] { learned(mixed); },
      {"[intarsia_learn_test::picky] the dtypes of its results cannot be told without values",
       "f16[4@a]", "give it operands of one dtype"});
}

TEST_F(LearnWithoutValues, OfTensorsInLists) {
  const at::Tensor x = tensor({4}, at::kInt);
  const FramedCall call("aten::_foreach_sqrt", "", {std::vector<at::Tensor>{x, x}});
  Decision d = unmoved(call.frame);
  d.results = {{Result::Kind::list, {d.in[0], d.in[1]}, 0}};
  learn_without_values(operands_of(call.frame, d), 0, d);
  EXPECT_EQ(d.results[0].specs[1]->dtype, at::kFloat);
}

/// What is learned where no piece is hosted: the operands' specs alone count.
Decision learned_from_zeros(const FramedCall& call, bool open) {
  Decision d = open ? unmoved(call.frame) : guessed(call.frame);
  d.open_results = open;
  learn_from_zeros(operands_of(call.frame, d), d);
  return d;
}

TEST(LearnFromZeros, DtypesWhereTheRuleKnowsTheSizes) {
  const Lockstep lockstep("[a=2]");
  const FramedCall call("aten::eq", "Scalar", {laid_out(counting({4}), "S(0)", lockstep), 1});
  const Decision d = learned_from_zeros(call, /*open=*/false);
  EXPECT_EQ(dtype_of_result(d), at::kBool);
  EXPECT_EQ(d.results[0].specs[0]->layout.placements_text(), "S(0)");
}

TEST(LearnFromZeros, EverythingWhereItDoesNot) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({4, 3}), "S(0)", lockstep);
  const Decision d = learned_from_zeros(FramedCall("aten::topk", "", {x, 2}), /*open=*/true);
  EXPECT_FALSE(d.open_results);
  ASSERT_EQ(d.results.size(), 2U);
  EXPECT_EQ(d.results[1].specs[0].to_string(), "i64[4, 2]");
  EXPECT_EQ(d.out_layouts[0].placements_text(), "R");
  const Decision list =
      learned_from_zeros(FramedCall("aten::unbind", "int", {x, 1}), /*open=*/true);
  EXPECT_EQ(list.results[0].kind, Result::Kind::list);
  EXPECT_EQ(list.results[0].specs.size(), 3U);
  const FramedCall in_place("aten::relu_", "", {x});
  const Decision written = learned_from_zeros(in_place, /*open=*/true);
  EXPECT_EQ(written.results[0].kind, Result::Kind::written);
  EXPECT_EQ(written.results[0].operand, 0U);
}

TEST(LearnFromZeros, OpsThatDivideGetIdentityMatrices) {
  const Lockstep lockstep("[a=2]");
  const FramedCall call("aten::cholesky_inverse", "",
                        {laid_out(counting({2, 3, 3}), "R", lockstep)});
  const Decision d = learned_from_zeros(call, /*open=*/true);
  EXPECT_EQ(d.results[0].specs[0]->sizes, (Shape{2, 3, 3}));
}

TEST(LearnFromZeros, WhatDependsOnValuesIsRefused) {
  const Lockstep lockstep("[a=2]");
  const FramedCall call("aten::nonzero", "", {laid_out(counting({4}), "R", lockstep)});
  expect_error<ValueError>([&] { learned_from_zeros(call, /*open=*/true); },
                           {"[aten::nonzero] what it returns depends on values, of which this "
                            "process, outside the mesh, has none",
                            "call it only on ranks of the mesh"});
}

}  // namespace
}  // namespace intarsia
