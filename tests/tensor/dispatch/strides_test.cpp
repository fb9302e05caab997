#include "tensor/dispatch/strides.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tensor/core/arguments.h"
#include "tensor/dispatch/dispatch.h"
#include "tensor/frames.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using testing::FramedCall;
using testing::Ints;
using testing::unmoved;
using torch::jit::Stack;

at::Tensor ones_of(const Ints& sizes) { return at::ones(sizes, at::kDouble); }
at::Tensor images(const Ints& sizes, bool channels_last) {
  const at::Tensor out = at::randn(sizes);
  return channels_last ? out.contiguous(at::MemoryFormat::ChannelsLast) : out;
}

class Strides : public ::testing::Test {
 protected:
  Strides() { register_kernels(); }

  /// A tensor of ours with the sizes and strides of a plain one, gaps included.
  at::Tensor ours(const at::Tensor& plain) const {
    World& world = lockstep_.world();
    const Spec spec(Layout::replicated(lockstep_.mesh()), to_shape(plain.sizes()),
                    to_shape(plain.strides()), 0, plain.scalar_type());
    return make_tensor(world.shared_from_this(), TensorState::of(world), spec, Pieces{plain});
  }

  /// The strides of a result of the call, which are those that ATen gives it.
  Ints strides(const char* op, const char* overload, const Stack& arguments,
               std::size_t index = 0) const {
    const auto replaced = [&](const c10::IValue& value) {
      return value.isTensor() ? c10::IValue(ours(value.toTensor())) : value;
    };
    Stack distributed;
    for (const c10::IValue& value : arguments) {
      distributed.push_back(is_tensor_list(value) ? replaced_list(value, replaced)
                                                  : replaced(value));
    }
    const FramedCall call(op, overload, distributed);
    Stack plain = call.stack;
    std::copy(arguments.begin(), arguments.end(), plain.begin());
    call.info.op.callBoxed(&plain);
    const at::Tensor expected = plain[index].toTensor();
    const Shape got = strides_of_result(call.frame, unmoved(call.frame), *call.info.rule,
                                        to_shape(expected.sizes()), index);
    EXPECT_EQ(to_ref(got), expected.strides()) << op;
    return to_ref(got).vec();
  }

 private:
  const Lockstep lockstep_{"[a=1]"};
};

TEST_F(Strides, OfAResultThatIsAskedForInAMemoryFormat) {
  const at::Tensor x = ours(ones_of({1}));
  const auto asked = [&](c10::IValue format, const Shape& sizes) {
    const FramedCall call("aten::clone", "", {x, std::move(format)});
    return strides_by_argument(call.frame, sizes);
  };
  EXPECT_EQ(asked(at::MemoryFormat::ChannelsLast, {2, 3, 4, 5}), (Shape{60, 1, 15, 3}));
  EXPECT_EQ(asked(at::MemoryFormat::ChannelsLast3d, {2, 3, 4, 5, 6}), (Shape{360, 1, 90, 18, 3}));
  EXPECT_EQ(asked(at::MemoryFormat::Contiguous, {2, 3}), (Shape{3, 1}));
  EXPECT_FALSE(asked(at::MemoryFormat::Preserve, {2, 3}));
  EXPECT_FALSE(asked({}, {2, 3}));
  const FramedCall none("aten::relu", "", {x});
  EXPECT_FALSE(strides_by_argument(none.frame, {2, 3}));
}

TEST_F(Strides, OfElementwiseOpsFollowTheOperands) {
  const at::Tensor turned = ones_of({3, 2}).t();
  const at::Tensor gaps = ones_of({4, 6}).slice(1, 0, 6, 2);
  EXPECT_EQ(strides("aten::neg", "", {turned}), (Ints{1, 2}));
  EXPECT_EQ(strides("aten::neg", "", {gaps}), (Ints{3, 1}));
  EXPECT_EQ(strides("aten::add", "Tensor", {turned, ones_of({2, 3})}), (Ints{1, 2}));
  EXPECT_EQ(strides("aten::add", "Tensor", {ones_of({2, 3}), turned}), (Ints{3, 1}));
  EXPECT_EQ(strides("aten::add", "Tensor", {ones_of({3}), turned}), (Ints{1, 2}));
  EXPECT_EQ(
      strides("aten::where", "self", {ones_of({4, 1, 1}).to(at::kBool), turned, ones_of({2, 3})}),
      (Ints{6, 1, 2}));
}

TEST_F(Strides, OfSomeGradientsFollowTheSecondOperandFirst) {
  const at::Tensor turned = ones_of({3, 2}).t();
  EXPECT_EQ(strides("aten::leaky_relu_backward", "", {ones_of({2, 3}), turned, 0.1, false}),
            (Ints{1, 2}));
  EXPECT_EQ(strides("aten::leaky_relu_backward", "", {turned, ones_of({2, 3}), 0.1, false}),
            (Ints{3, 1}));
}

TEST_F(Strides, OfAnOverloadMayBeContiguousInSpiteOfThat) {
  const at::Tensor turned = ones_of({3, 2}).t();
  EXPECT_EQ(strides("aten::pow", "Tensor_Scalar", {turned, 2}), (Ints{1, 2}));
  EXPECT_EQ(strides("aten::pow", "Scalar", {2, turned}), (Ints{3, 1}));
}

TEST_F(Strides, OfCopiesAreDenseOrAsAskedFor) {
  const at::Tensor expanded = ones_of({4}).expand({3, 4});
  EXPECT_EQ(strides("aten::clone", "", {expanded}), (Ints{4, 1}));
  EXPECT_EQ(strides("aten::clone", "", {ones_of({4, 3}).t()}), (Ints{1, 3}));
  strides("aten::clone", "", {expanded.t()});
  strides("aten::clone", "", {ones_of({2, 1, 3}).expand({2, 4, 3}).permute({2, 0, 1})});
  EXPECT_EQ(strides("aten::clone", "", {ones_of({4, 3}).t(), at::MemoryFormat::Contiguous}),
            (Ints{4, 1}));
}

TEST_F(Strides, OfLapackAreInColumns) {
  const at::Tensor matrices = at::eye(3, at::kDouble).expand({2, 3, 3}).contiguous();
  EXPECT_EQ(strides("aten::linalg_inv_ex", "", {matrices}), (Ints{9, 1, 3}));
  EXPECT_EQ(strides("aten::linalg_inv_ex", "", {matrices}, 1), (Ints{1}));
}

TEST_F(Strides, OfScattersKeepGaps) {
  const at::Tensor gaps = ones_of({3, 4}).narrow(1, 0, 2);
  EXPECT_EQ(strides("aten::slice_scatter", "", {gaps, ones_of({1, 2}), 0, 0, 1}), (Ints{4, 1}));
}

TEST_F(Strides, OfImagesAreChannelsLastWhereTheOperandsAre) {
  const Ints kernel{2, 2};
  for (const bool last : {false, true}) {
    const at::Tensor x = images({2, 3, 4, 4}, last);
    EXPECT_EQ(strides("aten::avg_pool2d", "", {x, kernel}),
              (last ? Ints{12, 1, 6, 3} : Ints{12, 4, 2, 1}));  // of the first
    EXPECT_EQ(strides("aten::avg_pool2d_backward", "",
                      {images({2, 3, 2, 2}, !last), x, kernel, kernel, Ints{0, 0}, false, true,
                       c10::IValue()}),
              (last ? Ints{48, 1, 12, 3} : Ints{48, 16, 4, 1}));  // of the second
    const at::Tensor plain = images({2, 3, 4, 4}, false);
    EXPECT_EQ(strides("aten::cat", "", {std::vector<at::Tensor>{x, plain}, 0}),
              (Ints{48, 16, 4, 1}));  // of all
    EXPECT_EQ(strides("aten::cat", "", {std::vector<at::Tensor>{x, x}, 0}),
              (last ? Ints{48, 1, 12, 3} : Ints{48, 16, 4, 1}));
  }
}

TEST_F(Strides, OfSignalsAreThoseOfImagesOfOneRow) {
  for (const std::int64_t channels : {1, 2}) {
    const at::Tensor x = at::randn({2, channels, 5});
    const at::Tensor weight = at::randn({3, channels, 2});
    const Ints ones{1};
    const Ints zeros{0};
    strides("aten::convolution", "",
            {x, weight, c10::IValue(), ones, zeros, ones, false, zeros, 1});
  }
}

TEST_F(Strides, OfIndexingFollowWhatIsIndexed) {
  const auto at_places = [](std::initializer_list<std::optional<at::Tensor>> list) {
    c10::List<std::optional<at::Tensor>> out;
    for (const auto& t : list) out.push_back(t);
    return c10::IValue(out);
  };
  const at::Tensor x = ones_of({4, 3, 2});
  const at::Tensor turned = x.permute({2, 1, 0});  // 2, 3, 4
  const at::Tensor two = at::tensor({0, 1}, at::kLong);
  EXPECT_EQ(strides("aten::index", "Tensor", {x, at_places({two})}), (Ints{6, 2, 1}));
  strides("aten::index", "Tensor", {turned, at_places({std::nullopt, two})});
  strides("aten::index", "Tensor", {turned, at_places({two, std::nullopt, two})});
  strides("aten::index", "Tensor", {turned, at_places({two.view({2, 1}), two})});
  const at::Tensor four = ones_of({2, 3, 4, 5}).permute({3, 1, 0, 2});
  strides("aten::index", "Tensor", {four, at_places({std::nullopt, two, std::nullopt, two})});
  strides("aten::index", "Tensor", {x, at_places({at::zeros({0}, at::kLong)})});
}

TEST_F(Strides, OfOtherOpsAreContiguousOrThoseOfTheirOperand) {
  const at::Tensor turned = ones_of({3, 2}).t();
  EXPECT_EQ(strides("aten::sum", "dim_IntList", {ones_of({4, 3, 2}).permute({2, 1, 0}), Ints{0}}),
            (Ints{4, 1}));
  EXPECT_EQ(strides("aten::sort", "", {turned}), (Ints{1, 2}));
  EXPECT_EQ(strides("aten::sort", "", {turned}, 1), (Ints{1, 2}));
}

}  // namespace
}  // namespace intarsia
