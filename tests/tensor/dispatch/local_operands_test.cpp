#include "tensor/dispatch/local_operands.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::FramedCall;
using testing::Ints;
using testing::laid_out;
using testing::Numbers;
using testing::numbers;
using testing::operands_of;
using testing::row_of;
using testing::unmoved;
using torch::jit::Stack;

TEST(LocalOperands, PiecesStandInThePlaceOfTensors) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({3}), "S(0)", lockstep);
  const at::Tensor plain = row_of({7});
  const FramedCall call("aten::add", "Tensor", {x, plain, 2});
  const Decision d = unmoved(call.frame);
  const LocalOperands operands = operands_of(call.frame, d);
  const Stack first = operands.arguments(0);
  ASSERT_EQ(first.size(), 3U);
  EXPECT_TRUE(first[0].toTensor().is_same(impl_of(x).pieces()[0]));
  EXPECT_TRUE(first[1].toTensor().is_same(plain));
  EXPECT_EQ(first[2].toInt(), 2);
  EXPECT_TRUE(operands.arguments(1)[0].toTensor().is_same(impl_of(x).pieces()[1]));
}

TEST(LocalOperands, TensorsThatWereNotPassedStayAway) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({2, 4}), "S(0)", lockstep);
  const at::Tensor bias = row_of({1, 1, 1, 1});
  const FramedCall call("aten::native_layer_norm", "", {x, Ints{4}, c10::IValue(), bias, 1e-5});
  const Decision d = unmoved(call.frame);
  const Stack stack = operands_of(call.frame, d).arguments(1);
  EXPECT_TRUE(stack[2].isNone());
  EXPECT_TRUE(stack[3].toTensor().is_same(bias));
  EXPECT_EQ(stack[1].toIntVector(), Ints{4});
}

TEST(LocalOperands, TensorsInListsAreReplacedOneByOne) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({2, 2}), "S(0)", lockstep);
  const at::Tensor y = laid_out(10 + counting({2, 2}), "S(0)", lockstep);
  const FramedCall cat("aten::cat", "", {std::vector<at::Tensor>{x, y}, 1});
  const Decision joined = unmoved(cat.frame);
  const auto list = operands_of(cat.frame, joined).arguments(1)[0].toTensorVector();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(numbers(list[0]), (Numbers{2, 3}));
  EXPECT_EQ(numbers(list[1]), (Numbers{12, 13}));

  c10::List<std::optional<at::Tensor>> places;
  places.push_back(std::nullopt);
  places.push_back(at::tensor({1}, at::kLong));
  const FramedCall index("aten::index", "Tensor", {x, places});
  const Decision indexed = unmoved(index.frame);
  const Stack stack = operands_of(index.frame, indexed).arguments(0);
  EXPECT_TRUE(stack[1].isOptionalTensorList());
  EXPECT_TRUE(stack[1].toListRef()[0].isNone());
  EXPECT_EQ(numbers(stack[1].toListRef()[1].toTensor()), (Numbers{1}));
}

TEST(LocalOperands, OtherPiecesMayBeGiven) {
  const Lockstep lockstep("[a=2]");
  const FramedCall call("aten::relu", "", {laid_out(counting({4}), "S(0)", lockstep)});
  const Decision d = unmoved(call.frame);
  const std::vector<Pieces> others{{row_of({5}), row_of({6})}};
  const LocalOperands operands = operands_of(call.frame, d);
  EXPECT_EQ(numbers(operands.arguments(1, others)[0].toTensor()), (Numbers{6}));
  EXPECT_EQ(numbers(operands.local_arguments(0, others)[0].toTensor()), (Numbers{5}));
}

TEST(LocalOperands, EachRankHasTheArgumentsThatTheDecisionSays) {
  const Lockstep lockstep("[a=2]");
  const FramedCall call("aten::view", "", {laid_out(counting({6}), "S(0)", lockstep), Ints{6, 1}});
  Decision d = unmoved(call.frame);
  d.local.arguments = {{{1, Ints{3, 1}}}, {{1, Ints{1, 3}}}};
  const LocalOperands operands = operands_of(call.frame, d);
  EXPECT_EQ(operands.local_arguments(0)[1].toIntVector(), (Ints{3, 1}));
  EXPECT_EQ(operands.local_arguments(1)[1].toIntVector(), (Ints{1, 3}));
  EXPECT_EQ(operands.arguments(1)[1].toIntVector(), (Ints{6, 1}));
  EXPECT_EQ(operands.op().schema().name(), "aten::view");
}

TEST(LocalOperands, AnotherOpTakesAsManyArgumentsAsItHas) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({6}), "S(0)", lockstep);
  const FramedCall call("aten::as_strided", "", {x, Ints{6}, Ints{1}});
  Decision d = unmoved(call.frame);
  d.local.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::alias", "");
  const LocalOperands operands = operands_of(call.frame, d);
  EXPECT_EQ(operands.op().schema().name(), "aten::alias");
  const Stack stack = operands.local_arguments(1);
  ASSERT_EQ(stack.size(), 1U);
  EXPECT_EQ(numbers(stack[0].toTensor()), (Numbers{3, 4, 5}));
}

}  // namespace
}  // namespace intarsia
