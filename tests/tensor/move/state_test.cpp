#include "tensor/move/state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "tensor/dispatch/dispatch.h"

namespace intarsia {
namespace {

using testing::expect_error;

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

/// Two ranks in one process. Tensors are made of their pieces, which nothing else shares.
struct TwoRanks {
  TwoRanks() { register_kernels(); }  // for views
  Layout layout(const char* text) const { return Layout::parse(text, ranks.mesh()); }
  at::Tensor tensor(const char* text, const Shape& sizes, const Pieces& pieces) const {
    return make_tensor(ranks.world().shared_from_this(), state, spec(text, sizes), pieces);
  }
  Spec spec(const char* text, const Shape& sizes) const {
    return {layout(text), sizes, at::kDouble};
  }
  Pieces move(const at::Tensor& x, const char* to, const Reason& reason = {.op = "test"}) const {
    DistributedImpl& impl = impl_of(x);
    return state.move(impl, state.plan(impl.spec(), layout(to)), reason);
  }
  std::uint64_t calls() const { return ranks.world().ledger().totals().calls; }

  Lockstep ranks{"[a=2]"};
  TensorState& state = TensorState::of(ranks.world());
};

TEST(TensorState, IsOneForEachWorld) {
  const TwoRanks one;
  const TwoRanks other;
  EXPECT_EQ(&TensorState::of(one.ranks.world()), &one.state);
  EXPECT_NE(&one.state, &other.state);
  EXPECT_EQ(&one.state.world(), &one.ranks.world());
}

TEST(TensorState, PlansForSizesAndDtypeOfATensor) {
  const TwoRanks r;
  const PlanPointer plan = r.state.plan(Spec(r.layout("S(0)"), {5, 4}, at::kHalf), r.layout("R"));
  EXPECT_EQ(plan->shape, (Shape{5, 4}));
  EXPECT_EQ(plan->element_size, 2);
  EXPECT_EQ(plan->from, r.layout("S(0)"));
  EXPECT_EQ(plan->to, r.layout("R"));
  EXPECT_EQ(r.state.plan(r.spec("P(sum)", {5}), r.layout("P(max)")), nullptr);
}

TEST(TensorState, MovesOfPiecesAreBilledEachTime) {
  const TwoRanks r;
  const Spec spec = r.spec("S(0)", {3});
  const Pieces pieces{doubles({1, 2}), doubles({3})};
  const PlanPointer plan = r.state.plan(spec, r.layout("R"));
  for (int i = 0; i < 2; ++i) {
    const Pieces moved = r.state.move(spec, pieces, plan, {.op = "aten::mm"});
    EXPECT_TRUE(at::equal(moved[1], doubles({1, 2, 3})));
  }
  ASSERT_EQ(r.state.bill().entries().size(), 1U);
  EXPECT_EQ(r.state.bill().entries()[0].op, "aten::mm");
  EXPECT_EQ(r.state.bill().entries()[0].count, 2U);
  // Two moves; uneven pieces are exchanged, so a rank hands its own over once for each rank.
  EXPECT_EQ(r.state.bill().entries()[0].bytes, 2U * 2U * 3U * 8U);
  EXPECT_EQ(r.ranks.world().ledger().entries()[0].tensor, "f64[3@a]");
  const Spec all = r.spec("R", {3});
  const Pieces same{doubles({1, 2, 3}), doubles({1, 2, 3})};
  r.state.move(all, same, r.state.plan(all, r.layout("S(0)")), {.op = "aten::mm"});
  EXPECT_EQ(r.state.bill().entries().size(), 1U) << "a slice sends nothing";
}

TEST(TensorState, MovesInAFormulaBelongToItsOp) {
  const TwoRanks r;
  r.state.bill().mode = Communication::explicit_only;
  const at::Tensor x = r.tensor("S(0)", {3}, {doubles({1, 2}), doubles({3})});
  expect_error<ValueError>([&] { r.move(x, "R", {.op = "aten::sum"}); },
                           {"[aten::sum] moves f64[3@a]"});
  EXPECT_EQ(r.calls(), 0U) << "it is refused before anything is sent";
  const FormulaScope scope("aten::softmax");
  r.move(x, "R", {.op = "aten::sum"});
  EXPECT_EQ(r.state.bill().entries()[0].op, "aten::softmax");
  EXPECT_EQ(r.ranks.world().ledger().entries()[0].op, "aten::softmax");
}

TEST(TensorState, MovedPiecesHaveTheStridesOfTheSpec) {
  const TwoRanks r;
  // 2x3 elements with columns first in memory.
  const Spec spec(r.layout("S(0)"), {2, 3}, {1, 2}, 0, at::kDouble);
  const Pieces pieces{at::ones({1, 3}, at::kDouble), at::ones({1, 3}, at::kDouble)};
  const Pieces moved =
      r.state.move(spec, pieces, r.state.plan(spec, r.layout("R")), {.op = "test"});
  EXPECT_EQ(moved[0].strides(), at::IntArrayRef({1, 2}));
}

TEST(TensorState, AMoveIsRememberedUntilTheNextWrite) {
  const TwoRanks r;
  const at::Tensor x =
      r.tensor("S(0)", {3, 1}, {at::ones({2, 1}, at::kDouble), at::ones({1, 1}, at::kDouble)});
  const at::Tensor y = r.tensor("R", {1}, {doubles({1}), doubles({1})});
  const Pieces first = r.move(x, "R");
  EXPECT_TRUE(r.move(x, "R")[0].is_same(first[0]));
  EXPECT_EQ(r.calls(), 1U);
  r.move(x, "S(1)");
  EXPECT_EQ(r.calls(), 2U) << "another layout";
  r.state.note_write(impl_of(y));
  EXPECT_FALSE(r.move(x, "R")[0].is_same(first[0])) << "y might share its memory";
  EXPECT_EQ(r.calls(), 3U);
  impl_of(x).expose();
  r.move(x, "R");
  EXPECT_EQ(r.calls(), 4U) << "plain tensors share its memory: writes to them are not seen";
}

TEST(TensorState, APartialTensorIsReducedOnce) {
  const TwoRanks r;
  const at::Tensor x = r.tensor("P(sum)", {3}, {doubles({1, 2, 3}), doubles({10, 20, 30})});
  EXPECT_TRUE(at::equal(r.move(x, "R")[1], doubles({11, 22, 33})));
  r.move(x, "R");
  EXPECT_EQ(r.calls(), 1U);
  const Pieces halves = r.move(x, "S(0)");
  EXPECT_EQ(r.calls(), 1U) << "a slice of what is known";
  EXPECT_TRUE(at::equal(halves[0], doubles({11, 22})));
  EXPECT_TRUE(at::equal(halves[1], doubles({33})));
  EXPECT_EQ(impl_of(x).reduced_layout(), r.layout("R"));
  impl_of(x).pieces()[0].fill_(0);
  r.state.note_write(impl_of(x));
  EXPECT_TRUE(at::equal(r.move(x, "R")[0], doubles({10, 20, 30})));
  EXPECT_EQ(r.calls(), 2U);
}

TEST(TensorState, AViewOfAPartialTensorIsReducedWithIt) {
  const TwoRanks r;
  const at::Tensor x =
      r.tensor("P(sum)", {2, 2},
               {doubles({1, 2, 3, 4}).view({2, 2}), doubles({10, 20, 30, 40}).view({2, 2})});
  const at::Tensor turned = x.t();
  EXPECT_TRUE(at::equal(r.move(turned, "R")[0], doubles({11, 33, 22, 44}).view({2, 2})));
  EXPECT_EQ(r.calls(), 1U);
  EXPECT_TRUE(at::equal(r.move(x, "R")[1], doubles({11, 22, 33, 44}).view({2, 2})));
  EXPECT_EQ(r.calls(), 1U);
  r.state.note_write(impl_of(turned));
  r.move(x, "R");
  EXPECT_EQ(r.calls(), 2U) << "a write to the view is one to the tensor";
}

TEST(TensorState, SettlesANormWhereItIs) {
  const TwoRanks r;
  const Pieces pieces{doubles({3, 6}), doubles({4, 8})};
  const at::Tensor x = r.tensor("P(norm:2)", {2}, pieces);
  const at::Tensor view = x.view({2, 1});
  r.state.settle(impl_of(view), {.op = "aten::add_"});
  EXPECT_EQ(impl_of(view).spec()->layout, r.layout("R"));
  EXPECT_TRUE(at::equal(pieces[0], doubles({5, 10})));
  EXPECT_TRUE(at::equal(pieces[1], doubles({5, 10})));
  EXPECT_EQ(impl_of(x).memory()->writes, 1U);
  EXPECT_EQ(r.state.bill().entries()[0].op, "aten::add_");
  EXPECT_EQ(r.calls(), 1U);
  EXPECT_EQ(impl_of(x).spec()->layout, r.layout("P(norm:2)")) << "it does not know yet";
  r.state.settle(impl_of(x), {.op = "aten::add_"});
  EXPECT_EQ(impl_of(x).spec()->layout, r.layout("R"));
  EXPECT_EQ(r.calls(), 1U) << "its memory is settled";
  EXPECT_TRUE(at::equal(pieces[0], doubles({5, 10})));
}

struct CountingSource : UseSource {
  at::Tensor in_use(std::size_t) override { return {}; }
  Layout layout_in_use(std::size_t) const override { return {}; }
  void written(std::size_t index) override { last = index; }
  std::uint64_t writes() const override { return 0; }
  std::optional<std::size_t> last;
};

TEST(TensorState, WritesAreToldToWhereATensorComesFrom) {
  const TwoRanks r;
  const auto source = std::make_shared<CountingSource>();
  const at::Tensor x = r.tensor("R", {1}, {doubles({1}), doubles({1})});
  Extra& extra = impl_of(x).need_extra();
  extra.inference_writes = std::make_shared<std::atomic<std::uint32_t>>(4);
  extra.on_use = std::make_unique<OnUse>(OnUse{.source = source, .index = 3});
  r.state.note_write(impl_of(x));
  EXPECT_EQ(source->last, 3U);
  EXPECT_NE(extra.on_use, nullptr);
  EXPECT_EQ(extra.inference_writes->load(), 5U);
  // A cast has values of its own once it is written to.
  source->last.reset();
  extra.on_use->cast_after = 0;
  r.state.note_write(impl_of(x));
  EXPECT_EQ(extra.on_use, nullptr);
  EXPECT_EQ(source->last, std::nullopt);
}

}  // namespace
}  // namespace intarsia
