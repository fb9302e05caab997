#include "tensor/move/relayout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"

namespace intarsia {
namespace {

using testing::expect_error;

/// Two ranks in one process.
struct TwoRanks {
  Layout layout(const char* text) const { return Layout::parse(text, ranks.mesh()); }
  at::Tensor tensor(const Spec& spec, const Pieces& pieces) const {
    return make_tensor(ranks.world().shared_from_this(), TensorState::of(ranks.world()), spec,
                       pieces);
  }
  /// 3x2 elements, 0 to 5, sharded by rows.
  at::Tensor rows() const {
    const at::Tensor full = at::arange(6).view({3, 2});
    return tensor({layout("S(0)"), {3, 2}, at::kLong},
                  {full.slice(0, 0, 2).clone(), full.slice(0, 2, 3).clone()});
  }
  std::uint64_t calls() const { return ranks.world().ledger().totals().calls; }

  Lockstep ranks{"[a=2]"};
};

TEST(Relayout, RefusesAnotherMesh) {
  const Mesh mesh = Mesh::parse("[a=2]");
  check_mesh("redistribute", Layout::parse("S(0)", mesh), mesh);
  expect_error<ValueError>(
      [&] { check_mesh("redistribute", Layout::parse("[b=2] S(0)"), mesh); },
      {"[redistribute] the tensor is on [a=2], not on [b=2]; redistribute_between()"});
}

TEST(Relayout, RefusesLayoutsToWhichNoExactWayLeads) {
  const TwoRanks r;
  const auto plan = [&](const char* from, const char* to) {
    const at::Tensor x = r.tensor({r.layout(from), {2}, at::kDouble},
                                  {at::ones({2}, at::kDouble), at::ones({2}, at::kDouble)});
    return plan_to("redistribute", impl_of(x), r.layout(to));
  };
  expect_error<ValueError>(
      [&] { plan("P(sum)", "P(max)"); },
      {"[redistribute] no exact way leads from [a=2] P(sum) to [a=2] P(max)", "go through R"});
  expect_error<ValueError>([&] { plan("R", "P(norm:2)"); }, {"a norm, which has no sign"});
  EXPECT_EQ(plan("P(sum)", "S(0)")->to, r.layout("S(0)"));
  const at::Tensor rows = r.rows();
  expect_error<ValueError>([&] { plan_to("here", impl_of(rows), Layout::parse("[b=2] R")); },
                           {"[here] the tensor is on [a=2]"});
}

TEST(Relayout, TheSameLayoutSharesPieces) {
  const TwoRanks r;
  const at::Tensor x = r.rows();
  const at::Tensor same = relaid(x, r.layout("S(0)"), {.op = "test"});
  EXPECT_FALSE(same.is_same(x));
  EXPECT_TRUE(impl_of(same).pieces()[0].is_same(impl_of(x).pieces()[0]));
  EXPECT_TRUE(impl_of(same).spec() == impl_of(x).spec());
  EXPECT_EQ(r.calls(), 0U);
}

TEST(Relayout, MovesAndChargesTheReason) {
  const TwoRanks r;
  const at::Tensor made =
      relaid(r.rows(), r.layout("S(1)"), {.op = "redistribute", .implicit = false});
  EXPECT_EQ(impl_of(made).spec()->layout, r.layout("S(1)"));
  EXPECT_EQ(made.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_TRUE(
      at::equal(impl_of(made).pieces()[0], at::tensor({0, 2, 4}).to(at::kLong).view({3, 1})));
  EXPECT_TRUE(
      at::equal(impl_of(made).pieces()[1], at::tensor({1, 3, 5}).to(at::kLong).view({3, 1})));
  const auto entries = TensorState::of(r.ranks.world()).bill().entries();
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].op, "redistribute");
  EXPECT_FALSE(entries[0].implicit);
}

TEST(Relayout, WhatMovedHasMemoryOfItsOwn) {
  const TwoRanks r;
  const at::Tensor full = at::arange(6).view({3, 2});
  const at::Tensor x = r.tensor({r.layout("R"), {3, 2}, at::kLong}, {full, full.clone()});
  // A slice of rows, which on each rank is a view of what it holds.
  const at::Tensor rows = relaid(x, r.layout("S(0)"), {.op = "test"});
  EXPECT_TRUE(at::equal(impl_of(rows).pieces()[1], full.slice(0, 2, 3)));
  for (std::size_t m = 0; m < 2; ++m) {
    EXPECT_FALSE(impl_of(rows).pieces()[m].is_alias_of(impl_of(x).pieces()[m]));
  }
  const at::Tensor stayed = moved_tensor(impl_of(x), r.layout("R"), impl_of(x).pieces());
  EXPECT_FALSE(impl_of(stayed).pieces()[0].is_alias_of(full));
  EXPECT_TRUE(at::equal(impl_of(stayed).pieces()[0], full));
}

TEST(Relayout, WhatMovedIsDenseWithDimensionsInTheSameOrder) {
  const TwoRanks r;
  // The columns 1 and 2 of three, with columns first in memory.
  const at::Tensor full = at::arange(12).view({3, 4}).t();  // 4x3, strides 1 and 4
  const at::Tensor part = full.slice(1, 1, 3);
  const Spec spec(r.layout("R"), {4, 2}, {1, 4}, 4, at::kLong);
  const at::Tensor x = r.tensor(spec, {part, part.clone()});
  const at::Tensor made = relaid(x, r.layout("S(0)"), {.op = "test"});
  EXPECT_EQ(made.strides(), at::IntArrayRef({1, 4}));
  EXPECT_EQ(made.storage_offset(), 0);
  EXPECT_EQ(impl_of(made).pieces()[0].strides(), at::IntArrayRef({1, 2}));
  EXPECT_TRUE(at::equal(impl_of(made).pieces()[1], part.slice(0, 2, 4)));
  // Rows with a gap between them have none afterwards.
  const Spec gaps(r.layout("R"), {4, 2}, {3, 1}, 1, at::kLong);
  const at::Tensor y = r.tensor(gaps, {part.contiguous(), part.contiguous()});
  EXPECT_EQ(relaid(y, r.layout("S(0)"), {.op = "test"}).strides(), at::IntArrayRef({2, 1}));
}

}  // namespace
}  // namespace intarsia
