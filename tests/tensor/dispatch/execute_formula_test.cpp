#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "tensor/dispatch/decide.h"
#include "tensor/dispatch/execute.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::expect_error;
using testing::FramedCall;
using testing::Ints;
using testing::laid_out;
using testing::Numbers;
using testing::numbers;
using testing::numbers_of;
using testing::row_of;
using testing::unmoved;
using torch::jit::Stack;
using Rows = std::vector<Numbers>;

const Pieces& pieces_of(const at::Tensor& t) { return impl_of(t).pieces(); }

class ExecuteFormula : public ::testing::Test {
 protected:
  Layout layout(std::string_view text) const { return Layout::parse(text, lockstep_.mesh()); }
  at::Tensor tensor(const Ints& sizes, std::string_view text) const {
    return laid_out(counting(sizes), text, lockstep_);
  }

  /// Runs a call by this formula. Results are laid out as `row` says, and have the sizes of the
  /// first operand; operands are laid out as `in`.
  void run(FramedCall& call, const std::function<void(Stack&)>& formula, std::string_view row,
           const std::vector<std::string_view>& in = {}) const {
    use(call, formula);
    Decision d = unmoved(call.frame, std::vector(call.info.returns, row));
    const Spec spec(layout(row), d.in[0]->sizes, at::kDouble);
    d.results.assign(call.info.returns, {Result::Kind::tensor, {spec}, 0});
    for (std::size_t i = 0; i < in.size(); ++i) d.layouts[i] = layout(in[i]);
    plan_moves(call.frame, d);
    execute_formula(call.frame, d);
  }

  static void use(FramedCall& call, const std::function<void(Stack&)>& formula) {
    Rule rule;
    rule.options.formula = [formula](const c10::OperatorHandle&, Stack& stack) { formula(stack); };
    call.info.rule = std::make_shared<const Rule>(std::move(rule));
  }

  const Lockstep lockstep_{"[a=2]"};
};

TEST_F(ExecuteFormula, OperandsComeDistributedAndMoved) {
  std::vector<std::string> seen;
  FramedCall call("aten::add", "Tensor", {tensor({4}, "S(0)"), row_of({10}), 3});
  run(call,
      [&](Stack& stack) {
        seen = {describe(stack[0].toTensor()), describe(stack[1].toTensor())};
        stack = {stack[0].toTensor() + stack[1].toTensor() * stack[2].toScalar()};
      },
      "R", {"R"});
  EXPECT_EQ(seen, (std::vector<std::string>{"f64[4] on [a=2]", "f64[1] on [a=2]"}));
  ASSERT_EQ(call.stack.size(), 1U);
  EXPECT_EQ(numbers_of(pieces_of(call.stack[0].toTensor())),
            (Rows{{30, 31, 32, 33}, {30, 31, 32, 33}}));
}

TEST_F(ExecuteFormula, NumbersAndMissingOperandsStayAsTheyAre) {
  at::Tensor number = at::scalar_tensor(2, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  FramedCall call("aten::mul", "Tensor", {tensor({4}, "S(0)"), number});
  run(
      call,
      [&](Stack& stack) {
        EXPECT_FALSE(has_layout(stack[1].toTensor()));
        stack = {stack[0].toTensor() * stack[1].toTensor()};
      },
      "S(0)");
  EXPECT_EQ(numbers_of(pieces_of(call.stack[0].toTensor())), (Rows{{0, 2}, {4, 6}}));
  FramedCall clamp("aten::clamp", "Tensor", {tensor({4}, "S(0)"), c10::IValue(), row_of({1})});
  run(
      clamp,
      [&](Stack& stack) {
        EXPECT_TRUE(stack[1].isNone());
        stack = {at::minimum(stack[0].toTensor(), stack[2].toTensor())};
      },
      "S(0)");
  EXPECT_EQ(numbers_of(pieces_of(clamp.stack[0].toTensor())), (Rows{{0, 1}, {1, 1}}));
}

TEST_F(ExecuteFormula, TensorsInListsAreMovedToo) {
  const at::Tensor x = tensor({2}, "S(0)");
  const at::Tensor y = tensor({2}, "R");
  FramedCall call("aten::stack", "", {std::vector<at::Tensor>{x, y}, 0});
  run(call,
      [&](Stack& stack) {
        const auto list = stack[0].toTensorVector();
        EXPECT_EQ(layout_of(list[0]).placements_text(), "R");
        stack = {list[0] + list[1]};
      },
      "R", {"R", "R"});
  EXPECT_EQ(numbers_of(pieces_of(call.stack[0].toTensor())), (Rows{{0, 2}, {0, 2}}));
}

TEST_F(ExecuteFormula, APartialResultIsReducedUnlessTheRowLeavesItSo) {
  const at::Tensor x = tensor({4}, "P(sum)");
  const auto itself = [](Stack& stack) { stack = {stack[0].toTensor() * 2}; };
  FramedCall reduced("aten::relu", "", {x});
  run(reduced, itself, "R");
  EXPECT_EQ(numbers_of(pieces_of(reduced.stack[0].toTensor())), (Rows{{0, 2, 4, 6}, {0, 2, 4, 6}}));
  FramedCall left("aten::relu", "", {x});
  run(left, itself, "P(sum)");
  EXPECT_EQ(layout_of(left.stack[0].toTensor()).placements_text(), "P(sum)");
}

TEST_F(ExecuteFormula, ResultsHaveMemoryOfTheirOwn) {
  const at::Tensor x = tensor({4}, "S(0)");
  FramedCall call("aten::relu", "", {x});
  run(
      call, [](Stack& stack) { stack = {stack[0].toTensor().view({4})}; }, "S(0)");
  const at::Tensor out = call.stack[0].toTensor();
  EXPECT_EQ(numbers_of(pieces_of(out)), (Rows{{0, 1}, {2, 3}}));
  for (std::size_t m = 0; m < 2; ++m) {
    EXPECT_FALSE(pieces_of(out)[m].is_alias_of(pieces_of(x)[m]));
  }
}

TEST_F(ExecuteFormula, ResultsHaveTheStridesOfTheirSpec) {
  FramedCall call("aten::relu", "", {tensor({2, 3}, "R")});
  use(call, [](Stack& stack) { stack = {stack[0].toTensor() * 1}; });
  Decision d = unmoved(call.frame, {"R"});
  const Spec columns(layout("R"), Shape{2, 3}, Shape{1, 2}, 0, at::kDouble);
  d.results = {{Result::Kind::tensor, {columns}, 0}};
  execute_formula(call.frame, d);
  const at::Tensor out = call.stack[0].toTensor();
  EXPECT_EQ(out.strides(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(pieces_of(out)[1].strides(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(numbers(pieces_of(out)[1]), (Numbers{0, 1, 2, 3, 4, 5}));
}

TEST_F(ExecuteFormula, APlainResultIsRefused) {
  FramedCall call("aten::relu", "", {tensor({4}, "S(0)")});
  expect_error<ValueError>(
      [&] {
        run(
            call, [](Stack& stack) { stack = {at::zeros({4})}; }, "S(0)");
      },
      {"[aten::relu] its formula gave a plain tensor", "as x.new_zeros(sizes) does"});
}

TEST_F(ExecuteFormula, WrittenOperandsTakeTheResult) {
  const at::Tensor x = tensor({4}, "S(0)");
  FramedCall in_place("aten::relu_", "", {x});
  use(in_place, [](Stack& stack) { stack = {stack[0].toTensor() + 1}; });
  Decision d = unmoved(in_place.frame, {"S(0)"});
  d.results = {{Result::Kind::written, {}, 0}};
  execute_formula(in_place.frame, d);
  EXPECT_TRUE(in_place.stack[0].toTensor().is_same(x));
  EXPECT_EQ(numbers_of(pieces_of(x)), (Rows{{1, 2}, {3, 4}}));

  const at::Tensor out = tensor({4}, "R");
  FramedCall call("aten::relu", "out", {x, out});
  use(call, [](Stack& stack) {
    EXPECT_EQ(stack.size(), 1U) << "out= is none of its arguments";
    stack = {stack[0].toTensor() * 2};
  });
  Decision into = unmoved(call.frame, {"S(0)"});
  into.results = {{Result::Kind::written, {}, 1}};
  execute_formula(call.frame, into);
  EXPECT_EQ(numbers_of(pieces_of(out)), (Rows{{2, 4, 6, 8}, {2, 4, 6, 8}}));
}

TEST_F(ExecuteFormula, APlainOperandThatIsWrittenBesidesIsWrittenOnce) {
  const at::Tensor mean = row_of({5, 6});
  const at::Tensor var = row_of({1, 1});
  const at::Tensor x = tensor({2, 2}, "R");
  FramedCall call("aten::native_batch_norm", "",
                  {x, c10::IValue(), c10::IValue(), mean, var, true, 0.1, 1e-5});
  run(
      call,
      [](Stack& stack) {
        stack[3].toTensor().add_(1);
        const at::Tensor out = stack[0].toTensor() * 2;
        stack = {out, out, out};
      },
      "R");
  EXPECT_EQ(numbers(mean), (Numbers{6, 7}));
  EXPECT_EQ(numbers(var), (Numbers{1, 1}));
}

TEST_F(ExecuteFormula, WhatItSendsIsTheOpsOwn) {
  FramedCall call("aten::relu", "", {tensor({4}, "S(0)")});
  run(
      call, [](Stack& stack) { stack = {stack[0].toTensor().sum() + stack[0].toTensor()}; },
      "S(0)");
  const Bill sent = bill(lockstep_.world());
  ASSERT_EQ(sent.entries.size(), 1U);
  EXPECT_EQ(sent.entries[0].op, "aten::relu");
  EXPECT_FALSE(sent.entries[0].implicit);
}

}  // namespace
}  // namespace intarsia
