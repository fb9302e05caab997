#include "tensor/move/write_through.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "tensor/move/relayout.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using testing::expect_error;

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

/// Two ranks in one process.
struct TwoRanks {
  Layout layout(const char* text) const { return Layout::parse(text, ranks.mesh()); }
  at::Tensor tensor(const Spec& spec, const Pieces& pieces) const {
    return make_tensor(ranks.world().shared_from_this(), TensorState::of(ranks.world()), spec,
                       pieces);
  }
  /// Three elements.
  at::Tensor tensor(const char* text, const Pieces& pieces) const {
    return tensor({layout(text), {3}, at::kDouble}, pieces);
  }
  /// A view of a tensor whose elements were moved: all of them.
  at::Tensor moved_view(const at::Tensor& base, const char* to) const {
    const at::Tensor moved = relaid(base, layout(to), {.op = "view"});
    const at::Tensor view =
        make_tensor(impl_of(moved), impl_of(moved).spec(), impl_of(moved).pieces());
    impl_of(view).need_extra().moved_copy = moved_copy_of(impl_of(base), moved);
    return view;
  }
  std::uint64_t calls() const { return ranks.world().ledger().totals().calls; }

  Lockstep ranks{"[a=2]"};
};

void expect_pieces(const at::Tensor& t, const Pieces& want) {
  for (std::size_t m = 0; m < want.size(); ++m) {
    EXPECT_TRUE(at::equal(impl_of(t).pieces()[m], want[m])) << impl_of(t).pieces()[m];
  }
}

TEST(WriteThrough, LeavesOtherTensorsAlone) {
  const TwoRanks r;
  const at::Tensor x = r.tensor("S(0)", {doubles({1, 2}), doubles({3})});
  write_through(impl_of(x), "aten::add_");
  impl_of(x).need_extra();
  write_through(impl_of(x), "aten::add_");
  expect_pieces(x, {doubles({1, 2}), doubles({3})});
  EXPECT_EQ(r.calls(), 0U);
}

TEST(WriteThrough, BringsWhatWasWrittenHome) {
  const TwoRanks r;
  const at::Tensor base = r.tensor("R", {doubles({1, 2, 3}), doubles({1, 2, 3})});
  const at::Tensor view = r.moved_view(base, "S(0)");
  impl_of(view).pieces()[0].fill_(7);
  write_through(impl_of(view), "aten::fill_");
  expect_pieces(base, {doubles({7, 7, 3}), doubles({7, 7, 3})});
  EXPECT_EQ(r.calls(), 1U);
  const auto entries = TensorState::of(r.ranks.world()).bill().entries();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].op, "aten::fill_");
  EXPECT_EQ(entries[0].transition, "S->R");
}

TEST(WriteThrough, AViewOfSomeElementsLeavesTheOthers) {
  const TwoRanks r;
  const at::Tensor base = r.tensor("S(0)", {doubles({1, 2}), doubles({3})});
  const at::Tensor moved = relaid(base, r.layout("R"), {.op = "view"});
  Pieces last;
  for (const at::Tensor& p : impl_of(moved).pieces()) last.push_back(p.slice(0, 2, 3));
  const at::Tensor view = r.tensor({r.layout("R"), {1}, {1}, 2, at::kDouble}, last);
  impl_of(view).need_extra().moved_copy = moved_copy_of(impl_of(base), moved);
  for (const at::Tensor& p : last) p.fill_(9);
  write_through(impl_of(view), "aten::fill_");
  expect_pieces(base, {doubles({1, 2}), doubles({9})});
}

TEST(WriteThrough, IsAWriteToTheBase) {
  const TwoRanks r;
  TensorState& state = TensorState::of(r.ranks.world());
  const at::Tensor base = r.tensor("S(0)", {doubles({1, 2}), doubles({3})});
  const PlanPointer gather = state.plan(impl_of(base).spec(), r.layout("R"));
  state.move(impl_of(base), gather, {.op = "test"});  // which is remembered
  const at::Tensor view = r.moved_view(base, "R");
  for (const at::Tensor& p : impl_of(view).pieces()) p.fill_(4);
  write_through(impl_of(view), "aten::fill_");
  EXPECT_TRUE(at::equal(state.move(impl_of(base), gather, {.op = "test"})[0], doubles({4, 4, 4})));
}

TEST(WriteThrough, TheBaseIsWhatItWasWhenTheViewWasTaken) {
  const TwoRanks r;
  const Pieces pieces{doubles({1, 2}), doubles({3})};
  const at::Tensor base = r.tensor("S(0)", pieces);
  const at::Tensor view = r.moved_view(base, "R");
  impl_of(base).replace({r.layout("R"), {1}, at::kDouble}, {doubles({6}), doubles({6})});
  for (const at::Tensor& p : impl_of(view).pieces()) p.fill_(4);
  write_through(impl_of(view), "aten::fill_");
  EXPECT_TRUE(at::equal(pieces[0], doubles({4, 4})));
  expect_pieces(base, {doubles({6}), doubles({6})});
}

TEST(WriteThrough, TheViewIsNotStaleAfterItsOwnWrite) {
  const TwoRanks r;
  const at::Tensor base = r.tensor("S(0)", {doubles({1, 2}), doubles({3})});
  impl_of(base).bump_version();
  const at::Tensor view = r.moved_view(base, "R");
  EXPECT_FALSE(impl_of(view).is_stale());
  write_through(impl_of(view), "aten::fill_");
  impl_of(base).bump_version();  // as ATen does after the op
  EXPECT_FALSE(impl_of(view).is_stale());
  impl_of(base).bump_version();  // a write from elsewhere
  EXPECT_TRUE(impl_of(view).is_stale());
}

TEST(WriteThrough, InInferenceModeWritesAreCountedHere) {
  const TwoRanks r;
  const c10::InferenceMode inference;
  const at::Tensor base = r.tensor("S(0)", {doubles({1, 2}), doubles({3})});
  TensorState::of(r.ranks.world()).note_write(impl_of(base));
  const at::Tensor view = r.moved_view(base, "R");
  for (const at::Tensor& p : impl_of(view).pieces()) p.fill_(4);
  write_through(impl_of(view), "aten::fill_");
  expect_pieces(base, {doubles({4, 4}), doubles({4})});
  EXPECT_FALSE(impl_of(view).is_stale());
  TensorState::of(r.ranks.world()).note_write(impl_of(base));
  EXPECT_TRUE(impl_of(view).is_stale());
}

TEST(WriteThrough, GoesOnToTheBaseOfTheBase) {
  const TwoRanks r;
  const at::Tensor base = r.tensor("S(0)", {doubles({1, 2}), doubles({3})});
  const at::Tensor view = r.moved_view(base, "R");
  const at::Tensor view_of_view = r.moved_view(view, "S(0)");
  impl_of(view_of_view).pieces()[1].fill_(8);
  write_through(impl_of(view_of_view), "aten::fill_");
  expect_pieces(view, {doubles({1, 2, 8}), doubles({1, 2, 8})});
  expect_pieces(base, {doubles({1, 2}), doubles({8})});
}

TEST(WriteThrough, RefusesABaseWhoseElementsShareMemory) {
  const TwoRanks r;
  const at::Tensor row = doubles({1, 2}).expand({3, 2});
  const Spec spec(r.layout("R"), {3, 2}, {0, 1}, 0, at::kDouble);
  const at::Tensor base = r.tensor(spec, {row, row.clone()});
  const at::Tensor view = r.moved_view(base, "S(0)");
  expect_error<ValueError>(
      [&] { write_through(impl_of(view), "aten::add_"); },
      {"[aten::add_] more than one element of the tensor that is written refers to a single",
       "f64[3, 2]", "clone() it before"});
  const at::Tensor none = r.tensor({r.layout("R"), {0, 2}, at::kDouble},
                                   {at::ones({0, 2}, at::kDouble), at::ones({0, 2}, at::kDouble)});
  impl_of(none).need_extra().moved_copy = impl_of(view).extra()->moved_copy;
  write_through(impl_of(none), "aten::add_");  // nothing was written
}

TEST(WriteThrough, SettlesABaseOfNorms) {
  const TwoRanks r;
  const at::Tensor base = r.tensor("P(norm:2)", {doubles({3, 6, 5}), doubles({4, 8, 12})});
  const at::Tensor view = r.moved_view(base, "R");
  expect_pieces(view, {doubles({5, 10, 13}), doubles({5, 10, 13})});
  for (const at::Tensor& p : impl_of(view).pieces()) p[0] = 2;
  write_through(impl_of(view), "aten::copy_");
  impl_of(base).refresh();
  EXPECT_EQ(impl_of(base).spec()->layout, r.layout("R"));
  expect_pieces(base, {doubles({2, 10, 13}), doubles({2, 10, 13})});
}

TEST(WriteThrough, KnowsThatTheMovedElementsWereSettled) {
  const TwoRanks r;
  const Pieces norms{doubles({3, 6, 5}), doubles({4, 8, 12})};
  const at::Tensor base = r.tensor("P(norm:2)", {norms[0].clone(), norms[1].clone()});
  const at::Tensor moved = r.tensor("P(norm:2)", norms);
  const at::Tensor view = r.tensor("P(norm:2)", norms);
  impl_of(view).need_extra().moved_copy = moved_copy_of(impl_of(base), moved);
  impl_of(view).need_extra().memory = impl_of(moved).memory();
  TensorState::of(r.ranks.world()).settle(impl_of(view), {.op = "aten::neg_"});
  for (const at::Tensor& p : impl_of(view).pieces()) p.neg_();
  write_through(impl_of(view), "aten::neg_");
  expect_pieces(base, {doubles({-5, -10, -13}), doubles({-5, -10, -13})});
}

}  // namespace
}  // namespace intarsia
