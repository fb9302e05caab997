#include "tensor/dispatch/decide.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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
using testing::unmoved;
using Texts = std::vector<std::string>;

/// The layouts in which the operands are used, then that of the first result.
Texts layouts_of(const Decision& d) {
  Texts out;
  for (const Layout& layout : d.layouts) out.push_back(layout.placements_text());
  if (!d.results.empty() && !d.results[0].specs.empty()) {
    out.push_back("-> " + d.results[0].specs[0]->layout.placements_text());
  }
  return out;
}

class Decide : public ::testing::Test {
 protected:
  at::Tensor tensor(const Ints& sizes, std::string_view layout,
                    at::ScalarType dtype = at::kDouble) const {
    return laid_out(counting(sizes).to(dtype), layout, lockstep_);
  }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(Decide, OperandsThatFitStay) {
  const FramedCall call("aten::mm", "", {tensor({4, 6}, "S(0)"), tensor({6, 2}, "R")});
  const Decision d = decide(call.frame);
  EXPECT_EQ(layouts_of(d), (Texts{"S(0)", "R", "-> S(0)"}));
  EXPECT_TRUE(d.moves.empty());
  EXPECT_EQ(d.strategy, Strategy::pieces) << "two ranks are here";
  EXPECT_EQ(d.results[0].specs[0]->sizes, (Shape{4, 2}));
}

TEST_F(Decide, OperandsThatDoNotFitArePlannedToMove) {
  const FramedCall call("aten::mul", "Tensor", {tensor({4, 6}, "S(0)"), tensor({4, 6}, "P(sum)")});
  const Decision d = decide(call.frame);
  EXPECT_EQ(layouts_of(d), (Texts{"S(0)", "S(0)", "-> S(0)"}));
  ASSERT_EQ(d.moves.size(), 2U);
  EXPECT_EQ(d.moves[0], nullptr);
  ASSERT_NE(d.moves[1], nullptr);
  EXPECT_EQ(d.moves[1]->to, d.layouts[1]);
}

TEST_F(Decide, OneRankWithNothingToMoveIsSimple) {
  const auto world = World::connect(Rendezvous{});
  const Layout layout = Layout::parse("[a=1] S(0)");
  const at::Tensor x = distribute(counting({4}), layout, *world);
  const FramedCall add("aten::add", "Tensor", {x, x});
  EXPECT_EQ(decide(add.frame).strategy, Strategy::simple);
  const FramedCall out("aten::add", "out", {x, x, 1, distribute(counting({4}), layout, *world)});
  EXPECT_EQ(decide(out.frame).strategy, Strategy::pieces);
  const at::Tensor same = distribute(counting({4}), Layout::replicated(layout.mesh()), *world);
  const FramedCall open("aten::nonzero", "", {same});
  EXPECT_EQ(decide(open.frame).strategy, Strategy::pieces);
}

TEST_F(Decide, PartialValuesAddUpUnlessTheyAreIntegers) {
  const at::Tensor x = tensor({4}, "P(sum)");
  const FramedCall floats("aten::add", "Tensor", {x, x});
  EXPECT_EQ(layouts_of(decide(floats.frame)), (Texts{"P(sum)", "P(sum)", "-> P(sum)"}));
  const at::Tensor n = tensor({4}, "P(sum)", at::kLong);
  const FramedCall integers("aten::add", "Tensor", {n, n});
  for (const std::string& text : layouts_of(decide(integers.frame))) {
    EXPECT_EQ(text.find('P'), std::string::npos) << text;
  }
  const FramedCall rounded("aten::sum", "", {x, at::kLong});
  EXPECT_FALSE(decide(rounded.frame).layouts[0].has_partial()) << "each would be rounded";
  const FramedCall before("aten::sum", "", {tensor({4}, "S(0)"), at::kLong});
  EXPECT_EQ(layouts_of(decide(before.frame)), (Texts{"S(0)", "-> P(sum)"}));
}

TEST_F(Decide, WhatIsWrittenInPlaceStaysOrIsBroughtBack) {
  const FramedCall stays("aten::relu_", "", {tensor({4}, "S(0)")});
  const Decision in_place = decide(stays.frame);
  EXPECT_FALSE(in_place.brings_back);
  EXPECT_EQ(in_place.results[0].kind, Result::Kind::written);
  EXPECT_EQ(in_place.results[0].operand, 0U);
  const FramedCall moves("aten::relu_", "", {tensor({4}, "P(sum)")});
  const Decision d = decide(moves.frame);
  EXPECT_TRUE(d.brings_back);
  EXPECT_FALSE(d.layouts[0].has_partial());
  EXPECT_FALSE(d.out_layouts[0].has_partial());
  const FramedCall adds("aten::add_", "Tensor", {tensor({4}, "P(max)"), tensor({4}, "P(sum)")});
  const Decision mixed = decide(adds.frame);
  EXPECT_TRUE(mixed.brings_back);
  EXPECT_FALSE(mixed.out_layouts[0].has_partial()) << "P(max) cannot be made of P(sum)";
}

TEST_F(Decide, OpsWithoutARuleRunOnFullTensors) {
  const FramedCall call("aten::nonzero", "", {tensor({4}, "S(0)")});
  const Decision d = decide(call.frame);
  EXPECT_TRUE(d.open_results);
  EXPECT_TRUE(d.results.empty());
  EXPECT_EQ(layouts_of(d), (Texts{"R"}));
  ASSERT_EQ(d.moves.size(), 1U);
  EXPECT_NE(d.moves[0], nullptr);
  EXPECT_FALSE(d.brings_back);
  const FramedCall put("aten::put_", "",
                       {tensor({4}, "S(0)"), at::tensor({1}, at::kLong), counting({1}), false});
  EXPECT_TRUE(decide(put.frame).brings_back);
}

TEST_F(Decide, ACallThatCannotBeRunsOnFullTensorsWhereATenRefusesIt) {
  const at::Tensor x = tensor({1, 1, 6}, "S(2)");
  const Ints stride{0};
  const FramedCall call(
      "aten::convolution", "",
      {x, counting({1, 1, 3}), c10::IValue(), stride, Ints{0}, Ints{1}, false, Ints{0}, 1});
  const Decision d = decide(call.frame);
  EXPECT_TRUE(d.open_results);
  EXPECT_EQ(layouts_of(d), (Texts{"R", "R", "R"}));
  EXPECT_EQ(d.in.size(), 3U);
}

TEST_F(Decide, RanksWithNothingOfAnOperandAreSkipped) {
  const Lockstep three("[a=3]");
  const auto rows = [&](std::int64_t n) { return laid_out(counting({n, 3}), "S(0)", three); };
  const FramedCall two("aten::relu", "", {rows(2)});
  EXPECT_EQ(decide(two.frame).local.skip, (std::vector<bool>{false, false, true}));
  const FramedCall enough("aten::relu", "", {rows(3)});
  EXPECT_TRUE(decide(enough.frame).local.skip.empty());
  const FramedCall none("aten::relu", "", {rows(0)});
  EXPECT_TRUE(decide(none.frame).local.skip.empty()) << "the full tensor has no elements either";
  const FramedCall added("aten::addmm", "", {rows(2), rows(2), counting({3, 3})});
  const Decision runs = decide(added.frame);
  EXPECT_EQ(runs.layouts[0].placements_text(), "S(0)");
  EXPECT_TRUE(runs.local.skip.empty()) << "its rule says that it runs on empty pieces";
}

TEST_F(Decide, NewTensorsAreLaidOutAsTheOneTheyAreMadeAfter) {
  const FramedCall rows("aten::zeros_like", "", {tensor({4, 6}, "S(0)")});
  EXPECT_EQ(layouts_of(decide(rows.frame)), (Texts{"S(0)", "-> S(0)"}));
  const FramedCall sum("aten::zeros_like", "", {tensor({4, 6}, "P(sum)"), at::kInt});
  EXPECT_EQ(layouts_of(decide(sum.frame)), (Texts{"P(sum)", "-> R"}));
  EXPECT_EQ(decide(sum.frame).results[0].specs[0]->dtype, at::kInt);
  const at::Tensor turned = laid_out(counting({3, 5}).t(), "S(0)", lockstep_);
  const FramedCall same("aten::new_zeros", "", {turned, Ints{5, 3}});
  EXPECT_EQ(layouts_of(decide(same.frame)), (Texts{"S(0)", "-> S(0)"}));
  EXPECT_EQ(decide(same.frame).results[0].specs[0]->strides, (Shape{3, 1}));
  EXPECT_EQ(decide(same.frame).local.arguments[1][0].second.toIntVector(), (Ints{2, 3}));
  const FramedCall like("aten::zeros_like", "", {turned});
  EXPECT_EQ(decide(like.frame).results[0].specs[0]->strides, (Shape{1, 5}));
  const FramedCall other("aten::new_zeros", "", {turned, Ints{5}});
  EXPECT_EQ(layouts_of(decide(other.frame)), (Texts{"S(0)", "-> R"}));
}

TEST_F(Decide, AFormulaIsUsedWhereItSendsLess) {
  const auto world = simulate({.size = 4});
  const Layout columns = Layout::parse("[a=4] S(1)");
  const at::Tensor x = zeros({4096, 65536}, columns, *world);
  const FramedCall call("aten::_softmax", "", {x, 1, false});
  const Decision d = decide(call.frame);
  EXPECT_EQ(d.strategy, Strategy::formula);
  EXPECT_EQ(layouts_of(d), (Texts{"S(1)", "-> S(1)"}));
  EXPECT_FALSE(d.local.by_spec);
  const at::Tensor none = zeros({0, 65536}, columns, *world);
  const FramedCall empty("aten::_softmax", "", {none, 1, false});
  EXPECT_NE(decide(empty.frame).strategy, Strategy::formula);
  world->close();
}

TEST_F(Decide, AViewThatMovesIsAViewOfACopy) {
  const FramedCall column("aten::select", "int", {tensor({4, 6}, "S(0)"), 1, 2});
  EXPECT_FALSE(decide(column.frame).moves_view);
  const FramedCall row("aten::select", "int", {tensor({4, 6}, "S(0)"), 0, 2});
  EXPECT_TRUE(decide(row.frame).moves_view);
}

TEST_F(Decide, APlainTensorForTheResultTakesItsSizes) {
  const at::Tensor plain = at::empty({0}, at::kDouble);
  const FramedCall call("aten::add", "out", {tensor({4}, "S(0)"), tensor({4}, "S(0)"), 1, plain});
  const Decision d = decide(call.frame);
  EXPECT_TRUE(d.brings_back);
  EXPECT_EQ(d.in[2]->sizes, (Shape{4}));
  EXPECT_EQ(d.results[0].operand, 2U);
}

TEST_F(Decide, TensorsThatCannotBeTogetherAreRefused) {
  const auto refuses = [](const char* op, const char* overload, torch::jit::Stack arguments,
                          std::initializer_list<std::string> parts) {
    const FramedCall call(op, overload, std::move(arguments));
    expect_error<ValueError>([&] { decide(call.frame); }, parts);
  };
  const at::Tensor x = tensor({4}, "S(0)");
  const Lockstep other("[a=2]");
  refuses("aten::add", "Tensor", {x, laid_out(counting({4}), "S(0)", other)},
          {"[aten::add.Tensor] tensors of two worlds meet", "go through full()"});
  const at::Tensor y = distribute(counting({4}), Layout::parse("[b=2] S(0)"), lockstep_.world());
  refuses("aten::add", "Tensor", {x, y},
          {"tensors are on different meshes, [a=2] and [b=2]", "f64[4@a]", "f64[4@b]"});
  refuses("aten::add_", "Tensor", {x, tensor({2, 4}, "R")},
          {"an op in place would have to change the sizes (4) to (2,4)"});
  refuses("aten::add", "out", {x, x, 1, tensor({3}, "R")},
          {"out= has sizes (3) where the result has (4)", "cannot be resized"});
  refuses("aten::add_", "Scalar", {tensor({1, 4}, "R").expand({3, 4}), 1},
          {"more than one element of the tensor that is written", "clone() it before"});
}

TEST_F(Decide, APlanThatDoesNotExistIsRefused) {
  const FramedCall call("aten::relu", "", {tensor({4}, "P(max)")});
  Decision d = unmoved(call.frame);
  d.layouts = {Layout::parse("P(sum)", lockstep_.mesh())};
  expect_error<ValueError>(
      [&] { plan_moves(call.frame, d); },
      {"[aten::relu] no exact way leads from P(max) to P(sum)", "redistribute it to R first"});
  d.layouts = {d.in[0]->layout};
  plan_moves(call.frame, d);
  EXPECT_TRUE(d.moves.empty());
}

}  // namespace
}  // namespace intarsia
