#include "tensor/local/sharded_windows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tensor/frames.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::FramedCall;
using testing::laid_out;
using testing::Numbers;
using testing::numbers;
using testing::numbers_of;
using testing::row_of;
using Rows = std::vector<Numbers>;

/// Each element reads itself and one on either side, with padding at the ends.
Window three(std::size_t dim) { return {.dim = dim, .before = 1, .after = 1, .taps = 3}; }

/// Windows of a tensor for a result of its sizes and layout.
ShardedWindows windows_of(const FramedCall& call, const std::vector<Window>& windows) {
  const Spec& spec = call.frame.lead->spec();
  return {call.frame, windows, spec, spec->layout, spec->sizes};
}

TEST(Edge, PaddingIsReadAndNotNeeded) {
  const Edge first(three(0), {0, 2}, 4);
  EXPECT_EQ(first.read, (Range{-1, 3}));
  EXPECT_EQ(first.need, (Range{0, 3}));
  EXPECT_EQ(first.before(), 1);
  EXPECT_EQ(first.after(), 0);
  const Edge last(three(0), {2, 4}, 4);
  EXPECT_EQ(last.read, (Range{1, 5}));
  EXPECT_EQ(last.need, (Range{1, 4}));
  EXPECT_EQ(last.before(), 0);
  EXPECT_EQ(last.after(), 1);
}

TEST(Edge, AllThatIsReadMayBePadding) {
  const Window around{.dim = 0, .before = 3, .after = 3};
  const Edge front(around, {0, 2}, 4);  // of 3 + 4 + 3
  EXPECT_EQ(front.need.size(), 0);
  EXPECT_EQ(front.before() + front.after(), 2);
  const Edge back(around, {8, 10}, 4);
  EXPECT_EQ(back.need.size(), 0);
  EXPECT_EQ(back.before() + back.after(), 2);
  const Edge none(around, {}, 4);
  EXPECT_EQ(none.read, (Range{}));
  EXPECT_EQ(none.need, (Range{}));
}

TEST(ShardedWindows, AnAxisOfOneRankShardsNothing) {
  const Layout layout = Layout::parse("[a=1,b=2,c=2] S(0),S(1),S(1)");
  EXPECT_FALSE(is_sharded(layout, 0));
  EXPECT_TRUE(is_sharded(layout, 1));
  EXPECT_FALSE(is_sharded(layout, 2));
  const Shape sizes{4, 5};
  EXPECT_EQ(run_of(layout, sizes, 0, {0, 1, 1}), (Range{0, 4}));
  EXPECT_EQ(run_of(layout, sizes, 1, {0, 1, 0}), (Range{3, 4}));  // of [0,3) and [3,5)
  EXPECT_EQ(run_of(Layout::parse("[a=3] S(0)"), Shape{2}, 0, {2}), (Range{}));
}

TEST(ShardedWindows, OnlyShardedDimensionsWithWindowsCount) {
  const Lockstep lockstep("[a=2]");
  const FramedCall call("aten::relu", "", {laid_out(counting({6, 6}), "S(0)", lockstep)});
  EXPECT_TRUE(windows_of(call, {}).empty());
  EXPECT_TRUE(windows_of(call, {{.dim = 0}}).empty());
  EXPECT_TRUE(windows_of(call, {three(1)}).empty());
  const ShardedWindows rows = windows_of(call, {three(1), three(0)});
  EXPECT_FALSE(rows.empty());
  EXPECT_EQ(rows.edge(1, 0), nullptr);
  EXPECT_EQ(rows.edge(0, 1)->read, (Range{2, 7}));
  EXPECT_EQ(rows.without_padding({5, 7}, 0), (Sizes{0, 7}));
}

TEST(ShardedWindows, AreFetchedPaddedAndStripped) {
  const Lockstep lockstep("[a=2]");
  const at::Tensor x = laid_out(counting({6}), "S(0)", lockstep);
  const FramedCall call("aten::relu", "", {x});
  const ShardedWindows windows = windows_of(call, {three(0)});
  const Pieces fetched = windows.fetch(impl_of(x).pieces());
  EXPECT_EQ(numbers_of(fetched), (Rows{{0, 1, 2, 3}, {2, 3, 4, 5}}));
  const at::Tensor first = windows.padded(fetched[0], 0, 9);
  const at::Tensor last = windows.padded(fetched[1], 1, 9);
  EXPECT_EQ(numbers(first), (Numbers{9, 0, 1, 2, 3}));
  EXPECT_EQ(numbers(last), (Numbers{2, 3, 4, 5, 9}));
  EXPECT_EQ(numbers(windows.stripped(first, 0)), (Numbers{0, 1, 2, 3}));
  EXPECT_EQ(numbers(windows.stripped(last, 1)), (Numbers{2, 3, 4, 5}));
  EXPECT_EQ(windows.sizes({3}, 0, true), (Sizes{5}));
  EXPECT_EQ(windows.sizes({3}, 0, false), (Sizes{4}));
  EXPECT_EQ(windows.blank(impl_of(x).pieces()[1], 1).sizes(), at::IntArrayRef({5}));
}

TEST(ShardedWindows, CornersComeByWayOfTheEdges) {
  const Lockstep lockstep("[a=2,b=2]");
  const at::Tensor x = laid_out(counting({4, 4}), "S(0),S(1)", lockstep);
  const FramedCall call("aten::relu", "", {x});
  const ShardedWindows windows = windows_of(call, {three(0), three(1)});
  const Pieces fetched = windows.fetch(impl_of(x).pieces());
  EXPECT_EQ(numbers(fetched[0]), (Numbers{0, 1, 2, 4, 5, 6, 8, 9, 10}));
  EXPECT_EQ(numbers(fetched[3]), (Numbers{5, 6, 7, 9, 10, 11, 13, 14, 15}));
  EXPECT_EQ(numbers(windows.padded(fetched[1], 1, -1)),
            (Numbers{-1, -1, -1, -1, 1, 2, 3, -1, 5, 6, 7, -1, 9, 10, 11, -1}));
  // Along each dimension, elements 1 and 2 are in two windows.
  const Pieces ones(4, at::ones({3, 3}, at::kDouble));
  EXPECT_EQ(numbers_of(windows.give_back(ones)),
            (Rows{{1, 2, 2, 4}, {2, 1, 4, 2}, {2, 4, 1, 2}, {4, 2, 2, 1}}));
}

TEST(ShardedWindows, HelpersOfForms) {
  const Lockstep lockstep("[a=3]");
  const FramedCall call("aten::relu", "", {laid_out(counting({4, 2}), "S(0)", lockstep)});
  EXPECT_EQ(local_shapes(call.frame, call.frame.lead->spec()->layout, Shape{4, 2}),
            (std::vector<Shape>{{2, 2}, {2, 2}, {0, 2}}));
  EXPECT_TRUE(has_elements(Shape{}));
  EXPECT_TRUE(has_elements(Shape{2, 1}));
  EXPECT_FALSE(has_elements(Shape{2, 0}));
  torch::jit::Stack stack{1, 2, 3};
  replace_stack(stack, {row_of({4}), at::Tensor()});
  ASSERT_EQ(stack.size(), 2U);
  EXPECT_EQ(numbers(stack[0].toTensor()), (Numbers{4}));
  EXPECT_FALSE(stack[1].toTensor().defined());
}

}  // namespace
}  // namespace intarsia
