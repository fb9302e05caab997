#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/rendezvous.h"
#include "tensor/dispatch/execute.h"
#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::FramedCall;
using testing::Ints;
using testing::Numbers;
using testing::numbers;
using testing::row_of;
using testing::unmoved;
using torch::jit::Stack;

class ExecuteSimple : public ::testing::Test {
 protected:
  at::Tensor tensor(const at::Tensor& full) const { return distribute(full, layout_, *world_); }

  static const at::Tensor& piece(const c10::IValue& value) {
    return impl_of(value.toTensor()).pieces()[0];
  }

  /// A decision with these results.
  static Decision returning(const Frame& f, std::vector<Result> results) {
    Decision d = unmoved(f);
    d.results = std::move(results);
    return d;
  }

  /// One whose results have the spec of the first operand.
  static Decision like_first(const Frame& f) {
    const Result like{Result::Kind::tensor, {f.lead->spec()}, 0};
    return returning(f, std::vector<Result>(f.info.returns, like));
  }

  const std::shared_ptr<World> world_ = World::connect(Rendezvous{});
  const Layout layout_ = Layout::parse("[a=1] S(0)");
};

TEST_F(ExecuteSimple, RunsOnThePieceAndWrapsTheResult) {
  FramedCall call("aten::add", "Tensor", {tensor(row_of({1, 2})), row_of({10, 20}), 2});
  execute_simple(call.frame, like_first(call.frame));
  ASSERT_EQ(call.stack.size(), 1U);
  EXPECT_EQ(layout_of(call.stack[0].toTensor()), layout_);
  EXPECT_EQ(numbers(piece(call.stack[0])), (Numbers{21, 42}));
}

TEST_F(ExecuteSimple, LeavesWhatIsBelowOnTheStack) {
  const OpInfo info(c10::Dispatcher::singleton().findSchemaOrThrow("aten::view", ""));
  Stack stack{7, tensor(row_of({1, 2})), Ints{2}};
  Frame f(info, stack);
  const Spec column(layout_, Shape{2, 1}, at::kDouble);
  Decision d = returning(f, {{Result::Kind::tensor, {column}, 0}});
  d.local.arguments = {{{1, Ints{2, 1}}}};
  execute_simple(f, d);
  ASSERT_EQ(stack.size(), 2U);
  EXPECT_EQ(stack[0].toInt(), 7);
  EXPECT_EQ(numbers(piece(stack[1])), (Numbers{1, 2}));
  EXPECT_EQ(piece(stack[1]).dim(), 2);
}

TEST_F(ExecuteSimple, WhatIsWrittenIsReturnedItself) {
  const at::Tensor x =
      distribute(row_of({-1, 2}), Layout::parse("P(sum)", layout_.mesh()), *world_);
  const auto memory = impl_of(x).memory();
  const at::Tensor piece_before = impl_of(x).pieces()[0];
  FramedCall call("aten::relu_", "", {x});
  execute_simple(call.frame, returning(call.frame, {{Result::Kind::written, {}, 0}}));
  EXPECT_TRUE(call.stack[0].toTensor().is_same(x));
  EXPECT_TRUE(impl_of(x).pieces()[0].is_same(piece_before));
  EXPECT_EQ(numbers(piece_before), (Numbers{0, 2}));
  EXPECT_EQ(memory->writes, 1U) << "what was remembered of it no longer holds";
}

TEST_F(ExecuteSimple, ListsComeAndGoOneByOne) {
  const at::Tensor x = tensor(row_of({1, 2}));
  const at::Tensor y = tensor(row_of({3}));
  FramedCall call("aten::_foreach_neg", "", {std::vector<at::Tensor>{x, y}});
  const Result list{Result::Kind::list, {impl_of(x).spec(), impl_of(y).spec()}, 0};
  execute_simple(call.frame, returning(call.frame, {list}));
  const auto results = call.stack[0].toTensorVector();
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(numbers(piece(results[0])), (Numbers{-1, -2}));
  EXPECT_EQ(numbers(piece(results[1])), (Numbers{-3}));
  EXPECT_EQ(results[1].sizes(), at::IntArrayRef({1}));
}

TEST_F(ExecuteSimple, AnotherOpWithOtherArgumentsMayRun) {
  const at::Tensor x = tensor(counting({2, 1, 2}));
  impl_of(x).expose();
  FramedCall call("aten::_reshape_alias", "", {x, Ints{4}, Ints{1}});
  const Spec flat(layout_, Shape{4}, at::kDouble);
  Decision d = returning(call.frame, {{Result::Kind::tensor, {flat}, 0}});
  d.local.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::view", "");
  d.local.arguments = {{{1, Ints{4}}}};
  execute_simple(call.frame, d);
  ASSERT_EQ(call.stack.size(), 1U);
  EXPECT_EQ(piece(call.stack[0]).sizes(), at::IntArrayRef({4}));
  EXPECT_TRUE(piece(call.stack[0]).is_alias_of(impl_of(x).pieces()[0]));
  const auto& extra = impl_of(call.stack[0].toTensor()).extra();
  EXPECT_TRUE(extra && extra->exposed) << "a view has that from its base";
}

TEST_F(ExecuteSimple, LazyConjugatesAreResolved) {
  const at::Tensor z = at::conj(tensor(at::complex(row_of({1}), row_of({1}))));
  ASSERT_TRUE(impl_of(z).pieces()[0].is_conj());
  FramedCall call("aten::mul", "Tensor", {z, z});
  execute_simple(call.frame, like_first(call.frame));
  const at::Tensor square = piece(call.stack[0]);  // (1 - i)^2 = -2i
  EXPECT_EQ(numbers(at::view_as_real(square)), (Numbers{0, -2}));
}

TEST_F(ExecuteSimple, OperandsAndResultsMayBeMissing) {
  const at::Tensor x = tensor(row_of({1, 2, 3, 5}).view({2, 2}));
  const at::Tensor moment = tensor(at::ones({2, 1}, at::kDouble));
  FramedCall call("aten::native_layer_norm_backward", "",
                  {x, x, Ints{2}, moment, moment, c10::IValue(), c10::IValue(),
                   std::array<bool, 3>{true, false, false}});
  execute_simple(call.frame, like_first(call.frame));
  ASSERT_EQ(call.stack.size(), 3U);
  EXPECT_TRUE(is_ours(call.stack[0].toTensor()));
  EXPECT_FALSE(call.stack[1].toTensor().defined());
}

TEST_F(ExecuteSimple, ResultsHaveTheirDimensionsInTheOrderOfTheirSpec) {
  const at::Tensor x = tensor(counting({2, 3}));
  FramedCall call("aten::neg", "", {x});
  const Spec columns(layout_, Shape{2, 3}, Shape{1, 2}, 0, at::kDouble);
  execute_simple(call.frame, returning(call.frame, {{Result::Kind::tensor, {columns}, 0}}));
  EXPECT_EQ(piece(call.stack[0]).strides(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(numbers(piece(call.stack[0])), (Numbers{0, -1, -2, -3, -4, -5}));
}

TEST_F(ExecuteSimple, ValuesAreThoseOfThePiece) {
  const at::Tensor x = tensor(row_of({1, 2}));
  FramedCall call("aten::equal", "", {x, tensor(row_of({1, 2}))});
  execute_simple(call.frame, returning(call.frame, {{}}));
  ASSERT_EQ(call.stack.size(), 1U);
  EXPECT_TRUE(call.stack[0].toBool());
}

}  // namespace
}  // namespace intarsia
