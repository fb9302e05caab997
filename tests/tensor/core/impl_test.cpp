#include "tensor/core/impl.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;

/// A world of two ranks, and tensors in it of pieces that are made here.
struct Two {
  Lockstep lockstep{"[a=2]"};

  Layout layout(const char* text) const { return Layout::parse(text, lockstep.mesh()); }
  Tensor make(const Spec& spec, Pieces pieces) const {
    World& world = lockstep.world();
    return make_tensor(world.shared_from_this(), TensorState::of(world), spec, std::move(pieces));
  }
  /// Sizes {4, 3}, of which each rank has two rows.
  Tensor rows() const {
    return make(Spec(layout("S(0)"), {4, 3}, at::kFloat), {at::zeros({2, 3}), at::ones({2, 3})});
  }
  /// Sizes {2}, a partial value on each rank.
  Tensor partial(const char* placement) const {
    return make(Spec(layout(placement), {2}, at::kFloat), {at::zeros({2}), at::ones({2})});
  }
};

TEST(Impl, HasSizesStridesAndOffsetOfItsSpec) {
  const Two two;
  const Spec spec(two.layout("S(0)"), {4, 3}, {1, 4}, 2, at::kDouble);
  const Tensor t = two.make(spec, {at::ones({2, 3}, at::kDouble), at::ones({2, 3}, at::kDouble)});
  EXPECT_EQ(t.sizes(), at::IntArrayRef({4, 3}));
  EXPECT_EQ(t.strides(), at::IntArrayRef({1, 4}));
  EXPECT_EQ(t.storage_offset(), 2);
  EXPECT_EQ(t.numel(), 12);
  EXPECT_EQ(t.scalar_type(), at::kDouble);
  EXPECT_TRUE(t.device().is_cpu());
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_TRUE(t.is_non_overlapping_and_dense());
  EXPECT_TRUE(t.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::AutocastCPU));
  EXPECT_TRUE(is_ours(t));
  EXPECT_FALSE(is_ours(at::ones({4, 3})));
  EXPECT_FALSE(is_ours(Tensor()));
}

TEST(Impl, HasNoStorage) {
  const Two two;
  const Tensor t = two.rows();
  EXPECT_FALSE(t.has_storage());
  expect_error<c10::NotImplementedError>(
      [&] { t.storage(); }, {"[storage] f32[4@a, 3] on [a=2]", "full(tensor)", "full_state_dict"});
}

TEST(Impl, DetachedCopiesShareAndSnapshotsStayAsTheyWere) {
  const Two two;
  const Tensor t = two.rows();
  DistributedImpl& impl = impl_of(t);
  impl.need_extra().exposed = true;
  const auto snapshot = impl.snapshot();
  EXPECT_TRUE(snapshot->pieces()[1].is_same(impl.pieces()[1]));
  EXPECT_EQ(snapshot->extra(), impl.extra());
  impl.bump_version();
  EXPECT_EQ(snapshot->version_counter().current_version(), 1U) << "the version is shared";
  const auto detached = impl.shallow_copy_and_detach(c10::VariableVersion(7), true);
  EXPECT_EQ(detached->version_counter().current_version(), 7U);

  impl.replace(Spec(two.layout("R"), {5}, at::kLong), {at::arange(5), at::arange(5)});
  EXPECT_EQ(t.sizes(), at::IntArrayRef({5}));
  EXPECT_EQ(impl.extra(), nullptr) << "what was known is of other pieces";
  EXPECT_EQ(snapshot->sizes(), at::IntArrayRef({4, 3}));
  EXPECT_EQ(snapshot->spec()->layout, two.layout("S(0)"));
  EXPECT_EQ(snapshot->pieces()[0].sizes(), at::IntArrayRef({2, 3}));
}

TEST(Impl, BecomesAViewOfItself) {
  const Two two;
  const Tensor t = two.rows();
  const DistributedImpl& before = impl_of(t);
  const Tensor view = two.make(Spec(two.layout("S(1)"), {3, 4}, {1, 3}, 0, at::kFloat),
                               {before.pieces()[0].t(), before.pieces()[1].t()});
  auto& of = impl_of(view).need_extra().view_of;
  of.reset(new Extra::ViewOf{
      before.snapshot(), c10::Dispatcher::singleton().findSchemaOrThrow("aten::t", ""), {}});
  impl_of(t).take(impl_of(view));
  EXPECT_EQ(t.sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(t.strides(), at::IntArrayRef({1, 3}));
  EXPECT_TRUE(impl_of(t).pieces()[1].is_same(impl_of(view).pieces()[1]));
  EXPECT_EQ(impl_of(t).extra()->view_of, nullptr);
}

TEST(Impl, TakesAnothersPlaceAndKeepsItsVersion) {
  const Two two;
  const Tensor t = two.rows();
  const Tensor other = two.partial("P(sum)");
  t.unsafeGetTensorImpl()->bump_version();
  t.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
  EXPECT_EQ(t.sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(impl_of(t).spec(), impl_of(other).spec());
  EXPECT_TRUE(impl_of(t).pieces()[0].is_same(impl_of(other).pieces()[0]));
  EXPECT_EQ(t._version(), 1);
  EXPECT_EQ(other._version(), 0);
}

TEST(Impl, AMovedViewIsStaleAfterAWriteToItsBase) {
  const Two two;
  const Tensor base = two.rows();
  const Tensor view = two.rows();
  EXPECT_FALSE(impl_of(view).is_stale());
  const auto copy = [&] {
    return std::make_shared<Extra::MovedCopy>(impl_of(base).snapshot(), view,
                                              static_cast<std::uint32_t>(base._version()));
  };
  impl_of(view).need_extra().moved_copy = copy();
  EXPECT_FALSE(impl_of(view).is_stale());
  base.unsafeGetTensorImpl()->bump_version();
  EXPECT_TRUE(impl_of(view).is_stale());
  impl_of(view).need_extra().moved_copy = copy();  // taken again
  EXPECT_FALSE(impl_of(view).is_stale());
  impl_of(view).need_extra().moved_copy.reset();  // it holds itself
}

TEST(Impl, InInferenceModeWritesAreCountedHere) {
  const Two two;
  const c10::InferenceMode inference;
  const Tensor base = two.rows();
  const Tensor view = two.rows();
  ASSERT_TRUE(base.is_inference());
  const auto& writes = impl_of(base).inference_writes();
  auto& copy = impl_of(view).need_extra().moved_copy;
  copy = std::make_shared<Extra::MovedCopy>(impl_of(base).snapshot(), Tensor(), 0);
  EXPECT_FALSE(impl_of(view).is_stale());
  ++*writes;
  EXPECT_TRUE(impl_of(view).is_stale());
}

TEST(Impl, AViewIsTrackedAsItsBaseIs) {
  const Two two;
  const Tensor base = two.rows();
  const c10::InferenceMode inference;
  const Tensor view = two.rows();
  ASSERT_TRUE(view.is_inference());
  impl_of(view).track_like(impl_of(base));
  EXPECT_FALSE(view.is_inference());
  EXPECT_EQ(view._version(), 0);
  EXPECT_FALSE(impl_of(base).snapshot()->is_inference()) << "copies too, whatever the mode is";
}

TEST(Impl, RemembersHowItWasReducedUntilItIsWrittenOrExposed) {
  const Two two;
  const Tensor t = two.partial("P(sum)");
  DistributedImpl& impl = impl_of(t);
  EXPECT_EQ(impl.reduced_layout(), std::nullopt);
  PartialMemory& memory = *impl.memory();
  EXPECT_EQ(memory.spec, impl.spec());
  EXPECT_EQ(&memory, impl.memory().get()) << "made once";
  EXPECT_EQ(impl.reduced_layout(), std::nullopt);
  impl.need_extra().reduced.to = two.layout("S(0)");
  EXPECT_EQ(impl.reduced_layout(), two.layout("S(0)"));
  ++memory.writes;
  EXPECT_EQ(impl.reduced_layout(), std::nullopt);
  impl.need_extra().reduced.writes = 1;
  EXPECT_EQ(impl.reduced_layout(), two.layout("S(0)"));
  impl.expose();
  EXPECT_EQ(impl.reduced_layout(), std::nullopt);
}

TEST(Impl, NormsThatWereSettledAreReplicated) {
  const Two two;
  const Tensor t = two.partial("P(norm:2)");
  DistributedImpl& impl = impl_of(t);
  impl.refresh();
  EXPECT_EQ(impl.spec()->layout, two.layout("P(norm:2)"));
  const auto memory = impl.memory();
  impl.refresh();
  EXPECT_EQ(impl.spec()->layout, two.layout("P(norm:2)"));
  memory->settled = true;
  impl.refresh();
  EXPECT_EQ(impl.spec()->layout, two.layout("R"));
  EXPECT_EQ(memory->spec->layout, two.layout("P(norm:2)"));
}

TEST(Impl, MovesOfItAreForgottenWithItsPieces) {
  const Two two;
  RecentMoves recent;
  const Layout to = two.layout("R");
  const auto remember = [&](const Tensor& t) {
    recent.add(&impl_of(t), to, {}, recent.writes());
    impl_of(t).remembered_by = &recent;
    return static_cast<const void*>(&impl_of(t));
  };
  Tensor t = two.rows();
  const void* id = remember(t);
  impl_of(t).replace(impl_of(t).spec(), impl_of(t).pieces());
  EXPECT_FALSE(recent.find(id, to));
  EXPECT_EQ(impl_of(t).remembered_by.load(), nullptr);
  remember(t);
  impl_of(t).take(impl_of(two.rows()));
  EXPECT_FALSE(recent.find(id, to));
  remember(t);
  t.unsafeGetTensorImpl()->shallow_copy_from(two.rows().getIntrusivePtr());
  EXPECT_FALSE(recent.find(id, to));
  remember(t);
  t.reset();
  EXPECT_FALSE(recent.find(id, to));
}

TEST(Impl, AWeakPointerKeepsNothingThatItHolds) {
  const Two two;
  Tensor t = two.rows();
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(t.getIntrusivePtr());
  const Tensor piece = impl_of(t).pieces()[0];
  ASSERT_EQ(piece.use_count(), 2U);
  const std::weak_ptr<Extra> extra = (impl_of(t).need_extra(), impl_of(t).extra());
  t.reset();
  EXPECT_EQ(piece.use_count(), 1U);
  EXPECT_TRUE(extra.expired());
}

/// Says of every tensor that it is used replicated.
class Replicated final : public UseSource {
 public:
  explicit Replicated(Layout layout) : layout_(std::move(layout)) {}
  Tensor in_use(std::size_t) override { return {}; }
  Layout layout_in_use(std::size_t) const override { return layout_; }
  void written(std::size_t) override { ++writes_; }
  std::uint64_t writes() const override { return writes_; }

 private:
  Layout layout_;
  std::uint64_t writes_ = 0;
};

TEST(Impl, TheLayoutInUseIsTheSourcesForTheStoredTensorItself) {
  const Two two;
  const Tensor t = two.rows();
  EXPECT_EQ(layout_in_use(t), two.layout("S(0)"));
  const auto source = std::make_shared<Replicated>(two.layout("R"));
  auto& use = impl_of(t).need_extra().on_use;
  use = std::make_unique<OnUse>(OnUse{source});
  EXPECT_EQ(layout_in_use(t), two.layout("R"));
  use->cast_after = 0;
  source->written(0);
  EXPECT_EQ(layout_in_use(t), two.layout("S(0)")) << "the cast is its own tensor now";
  const auto turn = c10::Dispatcher::singleton().findSchemaOrThrow("aten::t", "");
  use = std::make_unique<OnUse>(OnUse{source}.then(turn, {}));
  EXPECT_EQ(layout_in_use(t), two.layout("S(0)")) << "a view is not known there";
}

}  // namespace
}  // namespace intarsia
