#include "tensor/dispatch/written.h"

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
using testing::numbers_of;
using testing::row_of;

/// A store that counts what is written to it.
class Store final : public UseSource {
 public:
  explicit Store(at::Tensor used) : used_(std::move(used)) {}
  at::Tensor in_use(std::size_t) override { return used_; }
  Layout layout_in_use(std::size_t) const override { return layout_of(used_); }
  void written(std::size_t) override { ++writes_; }
  std::uint64_t writes() const override { return writes_; }

 private:
  at::Tensor used_;
  std::uint64_t writes_ = 0;
};

class Written : public ::testing::Test {
 protected:
  at::Tensor tensor(std::string_view layout) const {
    return laid_out(counting({4}), layout, lockstep_);
  }

  /// A view of a tensor, as an op makes it before it shares more than memory.
  static at::Tensor seen_as(const at::Tensor& x, const char* layout) {
    const Spec spec(Layout::parse(layout, layout_of(x).mesh()), Shape{4}, x.scalar_type());
    return make_tensor(impl_of(x), spec, impl_of(x).pieces());
  }

  const Lockstep lockstep_{"[a=2]"};
};

/// The frame of a view that leaves a tensor of 4 elements as it is.
FramedCall viewing(const at::Tensor& x) { return FramedCall("aten::view", "", {x, Ints{4}}); }

TEST_F(Written, AViewOfAShardHasNothingFromItsBase) {
  const at::Tensor x = tensor("S(0)");
  const at::Tensor view = seen_as(x, "S(0)");
  share_extra(viewing(x).frame, view, nullptr, false);
  EXPECT_FALSE(impl_of(view).extra());
}

TEST_F(Written, AViewOfAPartialTensorKnowsWhatItIsAViewOf) {
  const at::Tensor x = tensor("P(sum)");
  const at::Tensor view = seen_as(x, "P(sum)");
  share_extra(viewing(x).frame, view, nullptr, false);
  EXPECT_EQ(impl_of(view).memory(), impl_of(x).memory());
  const auto& of = impl_of(view).extra()->view_of;
  ASSERT_TRUE(of);
  EXPECT_EQ(of->op.schema().name(), "aten::view");
  ASSERT_EQ(of->arguments.size(), 1U);
  EXPECT_EQ(of->arguments[0].toIntVector(), Ints{4});
  EXPECT_TRUE(of->base->pieces()[1].is_same(impl_of(x).pieces()[1]));

  const at::Tensor listed = seen_as(x, "P(sum)");
  share_extra(viewing(x).frame, listed, nullptr, /*in_list=*/true);
  EXPECT_EQ(impl_of(listed).memory(), impl_of(x).memory());
  EXPECT_FALSE(impl_of(listed).extra()->view_of);
}

TEST_F(Written, AViewOfAMovedCopyKnowsItsBase) {
  const at::Tensor x = tensor("S(0)");
  const at::Tensor moved = tensor("R");
  const at::Tensor view = seen_as(moved, "R");
  share_extra(viewing(x).frame, view, &moved, false);
  ASSERT_TRUE(impl_of(view).extra());
  const auto copy = impl_of(view).extra()->moved_copy;
  ASSERT_TRUE(copy);
  EXPECT_TRUE(copy->moved.is_same(moved));
  EXPECT_EQ(copy->base->spec(), impl_of(x).spec());
  const at::Tensor again = seen_as(view, "R");
  share_extra(viewing(view).frame, again, nullptr, false);
  ASSERT_TRUE(impl_of(again).extra());
  EXPECT_EQ(impl_of(again).extra()->moved_copy, copy) << "views of it share the copy";
}

TEST_F(Written, ExposedMemoryIsExposedInViews) {
  const at::Tensor x = tensor("S(0)");
  impl_of(x).expose();
  const at::Tensor view = seen_as(x, "S(0)");
  share_extra(viewing(x).frame, view, nullptr, false);
  EXPECT_TRUE(impl_of(view).extra() && impl_of(view).extra()->exposed);
  const at::Tensor unsafe = seen_as(x, "S(0)");
  const FramedCall call("aten::_unsafe_view", "", {x, Ints{4}});
  share_extra(call.frame, unsafe, nullptr, false);
  EXPECT_FALSE(impl_of(unsafe).extra()) << "the caller says that nobody else has it";
}

TEST_F(Written, AViewOfAStoredTensorComesFromTheSameStore) {
  const at::Tensor x = tensor("S(0)");
  const auto store = std::make_shared<Store>(tensor("R"));
  impl_of(x).need_extra().on_use = std::make_unique<OnUse>(OnUse{.source = store});
  const at::Tensor view = seen_as(x, "S(0)");
  share_extra(viewing(x).frame, view, nullptr, false);
  ASSERT_TRUE(impl_of(view).extra());
  const auto& use = impl_of(view).extra()->on_use;
  ASSERT_TRUE(use);
  EXPECT_EQ(use->source, store);
  ASSERT_EQ(use->views.size(), 1U);
  EXPECT_EQ(use->views[0].op.schema().name(), "aten::view");
  const FramedCall call("aten::relu_", "", {view});
  note_writes(call.frame);
  EXPECT_EQ(store->writes(), 1U);
}

TEST_F(Written, ViewsInInferenceModeShareTheCountOfWrites) {
  const c10::InferenceMode mode;
  const at::Tensor x = tensor("S(0)");
  const at::Tensor view = seen_as(x, "S(0)");
  share_extra(viewing(x).frame, view, nullptr, false);
  const FramedCall call("aten::relu_", "", {view});
  note_writes(call.frame);
  EXPECT_EQ(impl_of(x).inference_writes()->load(), 1U);
}

TEST_F(Written, WritesAreCounted) {
  const at::Tensor partial = tensor("P(sum)");
  EXPECT_EQ(impl_of(partial).memory()->writes, 0U);
  const FramedCall relu("aten::relu_", "", {partial});
  note_writes(relu.frame);
  EXPECT_EQ(impl_of(partial).memory()->writes, 1U);
  EXPECT_EQ(partial._version(), 0) << "ATen counts single tensors itself";
  const FramedCall read("aten::relu", "", {partial});
  note_writes(read.frame);
  EXPECT_EQ(impl_of(partial).memory()->writes, 1U);

  const at::Tensor x = tensor("S(0)");
  const at::Tensor y = tensor("S(0)");
  const FramedCall list("aten::_foreach_add_", "List",
                        {std::vector<at::Tensor>{x}, std::vector<at::Tensor>{y}});
  note_writes(list.frame);
  EXPECT_EQ(x._version(), 1);
  EXPECT_EQ(y._version(), 0);
}

TEST_F(Written, AMovedCopyIsWrittenThrough) {
  const at::Tensor x = tensor("S(0)");
  const at::Tensor moved = tensor("R");
  const at::Tensor view = seen_as(moved, "R");
  share_extra(viewing(x).frame, view, &moved, false);
  for (const at::Tensor& piece : impl_of(moved).pieces()) piece[1].fill_(9);
  const FramedCall call("aten::relu_", "", {view});
  note_writes(call.frame);
  EXPECT_EQ(numbers_of(impl_of(x).pieces()), (std::vector<Numbers>{{0, 9}, {2, 3}}));
}

TEST_F(Written, OutTakesTheSizesOfTheResultAndOthersDoNot) {
  at::Tensor out = at::empty({0}, at::kDouble);
  Frame::Tensor entry{.tensor = &out, .written = true, .is_out = true};
  write_plain(entry, row_of({1, 2}));
  EXPECT_EQ(numbers(out), (Numbers{1, 2}));
  entry.is_out = false;
  write_plain(entry, row_of({7}));
  EXPECT_EQ(numbers(out), (Numbers{7, 7}));
}

}  // namespace
}  // namespace intarsia
