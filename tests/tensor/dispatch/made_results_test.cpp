#include "tensor/dispatch/made_results.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "intarsia/simulate.h"
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
using testing::unmoved;
using torch::jit::Stack;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Result tensor_of(const Spec& spec) { return {Result::Kind::tensor, {spec}, 0}; }

TEST(MadeResults, OutTakesTheSizesThatTheOpGives) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({4}), "S(0)", lockstep);
  const at::Tensor out = laid_out(at::zeros({4}, at::kFloat), "S(0)", lockstep);
  const FramedCall call("aten::add", "out", {x, x, 1, out});
  const Decision d = unmoved(call.frame, {"S(0)"});
  const at::Tensor piece = piece_for_out(operands_of(call.frame, d), 2, 0);
  EXPECT_EQ(piece.sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(piece.scalar_type(), at::kFloat);
}

TEST(MadeResults, OutHasItsSizesWhereTheMemoryFormatIsAnOperands) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor last = at::zeros({3, 2, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor x = laid_out(last, "S(0)", lockstep);
  const at::Tensor out = laid_out(last, "R", lockstep);
  const FramedCall call("aten::cat", "out", {std::vector<at::Tensor>{x}, 0, out});
  Decision d = unmoved(call.frame, {"S(0)"});  // the op's result is laid out otherwise than `out`
  const at::Tensor piece = piece_for_out(operands_of(call.frame, d), 1, 1);
  EXPECT_EQ(piece.sizes(), at::IntArrayRef({1, 2, 2, 2}));
  EXPECT_EQ(piece.strides().slice(1), at::IntArrayRef({1, 4, 2}));
  d.open_results = true;
  EXPECT_EQ(piece_for_out(operands_of(call.frame, d), 1, 1).sizes(), at::IntArrayRef({0}));
}

TEST(MadeResults, SpecsSayAllAboutResultsWithoutValues) {
  const auto world = simulate({.size = 2, .rank = 1});
  const Layout rows = Layout::parse("[a=2] S(0)");
  const at::Tensor x = zeros({3, 2}, rows, *world);
  const FramedCall call("aten::aminmax", "", {x});
  Decision d = unmoved(call.frame, {"S(0)", "R"});
  d.results = {tensor_of(Spec(rows, Shape{3, 2}, Shape{1, 3}, 0, at::kHalf)), tensor_of(Spec())};
  LocalOperands operands = operands_of(call.frame, d);
  const Stack made = made_by_spec(operands, 0);
  ASSERT_EQ(made.size(), 2U);
  const at::Tensor& piece = made[0].toTensor();
  EXPECT_TRUE(piece.is_meta());
  EXPECT_EQ(piece.sizes(), at::IntArrayRef({1, 2}));
  EXPECT_EQ(piece.strides(), at::IntArrayRef({1, 1}));  // columns of one element
  EXPECT_EQ(piece.scalar_type(), at::kHalf);
  EXPECT_FALSE(made[1].toTensor().defined());
  world->close();
}

TEST(MadeResults, ListsAndWrittenOperandsWithoutValues) {
  const auto world = simulate({.size = 2, .rank = 1});
  const Layout rows = Layout::parse("[a=2] S(0)");
  const at::Tensor x = zeros({3}, rows, *world);
  const FramedCall split("aten::_foreach_neg", "", {std::vector<at::Tensor>{x, x}});
  Decision d = unmoved(split.frame, {"R"});
  d.results = {{Result::Kind::list, {impl_of(x).spec(), Spec(rows, Shape{5}, at::kFloat)}, 0}};
  LocalOperands two = operands_of(split.frame, d);
  const auto list = made_by_spec(two, 0)[0].toTensorVector();
  EXPECT_EQ(list[0].sizes(), at::IntArrayRef({1}));
  EXPECT_EQ(list[1].sizes(), at::IntArrayRef({2}));

  const FramedCall relu("aten::relu_", "", {x});
  Decision in_place = unmoved(relu.frame, {"S(0)"});
  in_place.results = {{Result::Kind::written, {}, 0}};
  LocalOperands self = operands_of(relu.frame, in_place);
  EXPECT_TRUE(made_by_spec(self, 0)[0].toTensor().is_same(impl_of(x).pieces()[0]));

  const FramedCall add("aten::add", "out", {x, x, 1, zeros({3}, rows, *world)});
  Decision out = unmoved(add.frame, {"R"});
  out.results = {{Result::Kind::written, {}, 2}};
  LocalOperands three = operands_of(add.frame, out);
  const Stack made = made_by_spec(three, 0);
  EXPECT_EQ(made[0].toTensor().sizes(), at::IntArrayRef({3}));  // as the op leaves it
  EXPECT_TRUE(three.pieces[2][0].is_same(made[0].toTensor()));
  world->close();
}

TEST(MadeResults, ARankThatHasNothingAddsNothing) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 2}), "S(0)", lockstep);
  const FramedCall call("aten::amax", "", {x, Ints{0}});
  const auto made = [&](std::string_view layout) {
    Decision d = unmoved(call.frame, {layout});
    d.results = {tensor_of(Spec(d.out_layouts[0], Shape{2}, at::kDouble))};
    LocalOperands operands = operands_of(call.frame, d);
    return numbers(made_without_running(operands, 1)[0].toTensor());
  };
  EXPECT_EQ(made("P(sum)"), (Numbers{0, 0}));
  EXPECT_EQ(made("P(max)"), (Numbers{-kInfinity, -kInfinity}));
  EXPECT_EQ(made("P(min)"), (Numbers{kInfinity, kInfinity}));
  EXPECT_EQ(made("P(prod)"), (Numbers{1, 1}));
  EXPECT_EQ(made("S(0)"), (Numbers{0}));
}

TEST(MadeResults, ARankThatHasNothingKeepsWhatItWouldWrite) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({1, 2}), "S(0)", lockstep);
  const FramedCall relu("aten::relu_", "", {x});
  Decision d = unmoved(relu.frame, {"S(0)"});
  d.results = {{Result::Kind::written, {}, 0}};
  LocalOperands self = operands_of(relu.frame, d);
  EXPECT_TRUE(made_without_running(self, 1)[0].toTensor().is_same(impl_of(x).pieces()[1]));

  const at::Tensor out = laid_out(at::ones({2}, at::kFloat), "R", lockstep);
  const FramedCall sum("aten::sum", "IntList_out", {x, Ints{0}, false, c10::IValue(), out});
  Decision summed = unmoved(sum.frame, {"P(sum)"});
  summed.results = {{Result::Kind::written, {}, 1}};
  LocalOperands operands = operands_of(sum.frame, summed);
  const Stack made = made_without_running(operands, 1);
  EXPECT_EQ(numbers(made[0].toTensor()), (Numbers{0, 0}));
  EXPECT_EQ(made[0].toTensor().scalar_type(), at::kFloat);
  EXPECT_TRUE(operands.pieces[1][1].is_same(made[0].toTensor()));
  EXPECT_EQ(numbers(impl_of(out).pieces()[1]), (Numbers{1, 1}));
}

TEST(MadeResults, AResultThatIsNotMadeIsUndefined) {
  const Lockstep lockstep("[a=2]");
  const FramedCall call("aten::aminmax", "", {laid_out(counting({1}), "S(0)", lockstep)});
  Decision d = unmoved(call.frame, {"R", "R"});
  d.results = {tensor_of(Spec()), tensor_of(Spec(d.out_layouts[0], Shape{}, at::kDouble))};
  LocalOperands operands = operands_of(call.frame, d);
  const Stack made = made_without_running(operands, 1);
  EXPECT_FALSE(made[0].toTensor().defined());
  EXPECT_TRUE(made[1].toTensor().defined());
}

}  // namespace
}  // namespace intarsia
