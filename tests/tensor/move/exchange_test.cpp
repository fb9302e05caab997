#include "tensor/move/exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/lockstep.h"
#include "intarsia/simulate.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Ranks in one process, and what their moves need.
struct Ranks {
  explicit Ranks(const char* mesh) : lockstep(mesh) {}

  /// The route of one step over all axes of the mesh.
  const StepRoute* step(StepKind kind, const char* before, const char* after, const Shape& shape,
                        std::int64_t chunks = 1) {
    const Layout from = Layout::parse(before, lockstep.mesh());
    const Layout to = Layout::parse(after, lockstep.mesh());
    AxisList axes;
    for (std::size_t a = 0; a < lockstep.mesh().axes(); ++a) {
      axes.push_back(static_cast<std::int8_t>(a));
    }
    routes.push_back(make_route(
        lockstep.world(), std::make_shared<Plan>(Plan{.from = from,
                                                      .to = to,
                                                      .shape = shape,
                                                      .element_size = 8,
                                                      .steps = {{kind, axes, from, to, chunks}}})));
    return &routes.back()->steps[0];
  }

  /// The new pieces of each tensor.
  std::vector<Tensors> exchange(std::vector<Moving> moving) {
    std::vector<Tensors> out;
    const auto then = [&](std::vector<Tensors> made) {
      EXPECT_EQ(pool->live(), 0) << "buffers were given back";
      out = std::move(made);
      return Tensors();
    };
    start_exchange(*pool, std::move(moving), then, {call, std::source_location::current()}).wait();
    return out;
  }
  Tensors exchange(const StepRoute* step, Tensors old) {
    return exchange({{step, std::move(old)}})[0];
  }

  LedgerTotals sent(CallKind kind) const { return lockstep.world().ledger().totals(kind); }

  Lockstep lockstep;
  std::shared_ptr<BufferPool> pool = std::make_shared<BufferPool>();
  std::vector<std::shared_ptr<const Route>> routes;
  Call call{.tensor = "x", .op = "test"};
};

at::Tensor longs(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }
at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

void expect_pieces(const Tensors& got, const Tensors& want, const std::string& what = {}) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t m = 0; m < got.size(); ++m) {
    EXPECT_EQ(got[m].sizes(), want[m].sizes()) << what << " of rank " << m;
    EXPECT_EQ(got[m].scalar_type(), want[m].scalar_type()) << what;
    EXPECT_TRUE(at::equal(got[m], want[m])) << what << " of rank " << m << '\n' << got[m];
  }
}

TEST(Exchange, BlocksAreViewsOfFlatArrays) {
  const at::Tensor flat = at::arange(24, at::kLong);
  EXPECT_TRUE(at::equal(block_of(flat, {2, 2}, {4, 6}, 8), longs({8, 9, 14, 15}).view({2, 2})));
  EXPECT_TRUE(
      at::equal(block_of(flat.narrow(0, 4, 12), {2, 1}, {2, 6}, 1), longs({5, 11}).view({2, 1})))
      << "it counts from where the array begins";
  block_of(flat, {1}, {24}, 3).fill_(-1);
  EXPECT_EQ(flat[3].item<std::int64_t>(), -1);
  EXPECT_EQ(elements({3, 4}), 12);
  EXPECT_EQ(elements({}), 1);
}

TEST(Exchange, RowsBecomeColumns) {
  Ranks r("[a=2]");
  const StepRoute* step = r.step(StepKind::all_to_all, "S(0)", "S(1)", {3, 5});
  const at::Tensor full = at::arange(15, at::kLong).view({3, 5});
  const Tensors want{longs({0, 1, 2, 5, 6, 7, 10, 11, 12}).view({3, 3}),
                     longs({3, 4, 8, 9, 13, 14}).view({3, 2})};
  expect_pieces(r.exchange(step, {full.slice(0, 0, 2), full.slice(0, 2, 3)}), want);
  // The same values with columns first in memory.
  const at::Tensor turned = full.t().contiguous().t();
  expect_pieces(r.exchange(step, {turned.slice(0, 0, 2), turned.slice(0, 2, 3)}), want);
  const StepRoute* back = r.step(StepKind::all_to_all, "S(1)", "S(0)", {3, 5});
  expect_pieces(r.exchange(back, want), {full.slice(0, 0, 2), full.slice(0, 2, 3)});
}

TEST(Exchange, BlocksAndAxesInAnyOrder) {
  Ranks two("[a=2]");
  expect_pieces(two.exchange(two.step(StepKind::all_to_all, "S(0)", "SS(0,2)", {8}),
                             {longs({0, 1, 2, 3}), longs({4, 5, 6, 7})}),
                {longs({0, 1, 4, 5}), longs({2, 3, 6, 7})});
  Ranks four("[a=2,b=2]");
  expect_pieces(four.exchange(four.step(StepKind::permute, "S(0),S(0)", "S(0),S(0) | 0:b>a", {7}),
                              {longs({0, 1}), longs({2, 3}), longs({4, 5}), longs({6})}),
                {longs({0, 1}), longs({4, 5}), longs({2, 3}), longs({6})});
}

TEST(Exchange, GathersEqualPiecesByAnAllGatherAndOthersByAnAllToAll) {
  Ranks r("[a=3]");
  const at::Tensor full = at::arange(6, at::kLong).view({2, 3});
  expect_pieces(r.exchange(r.step(StepKind::all_gather, "S(1)", "R", {2, 3}), full.split(1, 1)),
                {full, full, full});
  EXPECT_EQ(r.sent(CallKind::all_gather).calls, 1U);
  EXPECT_EQ(r.sent(CallKind::all_to_all).calls, 0U);
  // The last rank has no row.
  expect_pieces(r.exchange(r.step(StepKind::all_gather, "S(0)", "R", {2, 3}),
                           {full.slice(0, 0, 1), full.slice(0, 1, 2), full.slice(0, 2, 2)}),
                {full, full, full});
  EXPECT_EQ(r.sent(CallKind::all_gather).calls, 1U);
  EXPECT_EQ(r.sent(CallKind::all_to_all).calls, 1U);
}

TEST(Exchange, WhatARankKeepsIsNotSent) {
  Ranks r("[a=2]");
  const at::Tensor full = at::arange(32, at::kLong).view({2, 4, 4});
  expect_pieces(
      r.exchange(r.step(StepKind::all_to_all, "S(1)", "S(2)", {2, 4, 4}), full.split(2, 1)),
      full.split(2, 2));
  // Each rank holds 16 elements, keeps 8 and sends 8.
  EXPECT_EQ(r.sent(CallKind::all_to_all).bytes, 2U * 8U * 8U);
  // Old and new pieces of both ranks, and two buffers of 8 elements each.
  EXPECT_EQ(r.pool->high_water(), (2 * 32 + 2 * 2 * 8) * 8);
  EXPECT_EQ(r.pool->live(), 0);
  EXPECT_EQ(r.pool->idle(), 2 * 2 * 8 * 8);
}

TEST(Exchange, ReducesPartialValues) {
  Ranks r("[a=2]");
  const auto reduced = [&](const char* how, const Tensors& old) {
    return r.exchange(r.step(StepKind::reduce_scatter, how, "S(0)", {3}), old);
  };
  const Tensors old{doubles({3, 6, 5}), doubles({4, 8, 12})};
  expect_pieces(reduced("P(sum)", old), {doubles({7, 14}), doubles({17})});
  expect_pieces(reduced("P(avg)", old), {doubles({3.5, 7}), doubles({8.5})});
  expect_pieces(reduced("P(max)", old), {doubles({4, 8}), doubles({12})});
  expect_pieces(reduced("P(prod)", old), {doubles({12, 48}), doubles({60})});
  expect_pieces(reduced("P(norm:2)", old), {doubles({5, 10}), doubles({13})});
  // Halves are added in floats, and are halves again.
  const Tensors halves{old[0].to(at::kBFloat16), old[1].to(at::kBFloat16)};
  expect_pieces(reduced("P(norm:2)", halves),
                {doubles({5, 10}).to(at::kBFloat16), doubles({13}).to(at::kBFloat16)});
}

TEST(Exchange, ReducesOverSeveralAxesAndIntoReplicas) {
  Ranks r("[a=2,b=2]");
  expect_pieces(
      r.exchange(r.step(StepKind::exchange_partials, "P(sum),P(sum)", "S(0),R", {3}),
                 {longs({1, 2, 3}), longs({10, 20, 30}), longs({100, 200, 300}), longs({0, 0, 1})}),
      {longs({111, 222}), longs({111, 222}), longs({334}), longs({334})});
  // Two partial values, each of which is sharded over b.
  expect_pieces(r.exchange(r.step(StepKind::exchange_partials, "P(sum),S(0)", "S(0),R", {3}),
                           {longs({1, 2}), longs({3}), longs({10, 20}), longs({30})}),
                {longs({11, 22}), longs({11, 22}), longs({33}), longs({33})});
}

TEST(Exchange, InPartsGivesTheSameWithSmallerBuffers) {
  Ranks r("[a=2]");
  const at::Tensor full = at::arange(32, at::kLong).view({2, 4, 4});
  expect_pieces(
      r.exchange(r.step(StepKind::all_to_all, "S(1)", "S(2)", {2, 4, 4}, 4), full.split(2, 1)),
      full.split(2, 2));
  EXPECT_EQ(r.sent(CallKind::all_to_all).calls, 4U);
  EXPECT_EQ(r.sent(CallKind::all_to_all).bytes, 2U * 8U * 8U);
  EXPECT_EQ(r.pool->high_water(), (2 * 32 + 2 * 2 * 2) * 8) << "buffers of 2 elements";
  EXPECT_EQ(r.pool->live(), 0);
  // More parts than elements; and blocks.
  expect_pieces(r.exchange(r.step(StepKind::all_to_all, "S(0)", "SS(0,2)", {8}, 5),
                           {longs({0, 1, 2, 3}), longs({4, 5, 6, 7})}),
                {longs({0, 1, 4, 5}), longs({2, 3, 6, 7})});
}

TEST(Exchange, InPartsReducesToo) {
  Ranks r("[a=2]");
  const Tensors old{doubles({3, 6, 5}), doubles({4, 8, 12})};
  const auto reduced = [&](const char* how, std::int64_t chunks) {
    return r.exchange(r.step(StepKind::reduce_scatter, how, "S(0)", {3}, chunks), old);
  };
  expect_pieces(reduced("P(sum)", 2), {doubles({7, 14}), doubles({17})});
  expect_pieces(reduced("P(avg)", 2), {doubles({3.5, 7}), doubles({8.5})});
  expect_pieces(reduced("P(min)", 2), {doubles({3, 6}), doubles({5})});
  expect_pieces(reduced("P(prod)", 3), {doubles({12, 48}), doubles({60})});
  expect_pieces(reduced("P(norm:2)", 2), {doubles({5, 10}), doubles({13})});
}

TEST(Exchange, InPartsAddsInTheOrderOfRanks) {
  Ranks r("[a=3]");
  const Tensors old{at::full({8}, 1e8F), at::full({8}, 1.0F), at::full({8}, -1e8F)};
  const StepRoute* step = r.step(StepKind::exchange_partials, "P(sum)", "R", {8}, 3);
  const at::Tensor none = at::zeros({8});  // 1e8 + 1 is 1e8 in floats
  expect_pieces(r.exchange(step, old), {none, none, none});
}

/// Each rank's piece of random numbers, none of which adds up exactly.
Tensors random_pieces(const Layout& layout, const Shape& shape, at::ScalarType type) {
  Tensors out;
  for (std::int64_t i = 0; i < layout.mesh().size(); ++i) {
    const Coordinate at = *layout.mesh().coordinate_of(i);
    out.push_back(at::randn(to_ref(local_shape(layout, shape, at)), at::kDouble).to(type));
  }
  return out;
}

TEST(Exchange, InPartsGivesTheBitsOfAllAtOnce) {
  struct Case {
    const char* mesh;
    const char* before;
    const char* after;
  };
  const Shape shape{7, 5};
  for (const Case& c :
       {Case{"[a=3]", "P(sum)", "R"}, Case{"[a=4]", "P(avg)", "S(1)"},
        Case{"[a=3]", "P(norm:2)", "SS(0,2)"}, Case{"[a=3]", "P(max)", "R"},
        Case{"[a=2,b=3]", "P(sum),P(sum)", "S(0),R"}, Case{"[a=3,b=2]", "P(sum),S(0)", "S(1),R"},
        Case{"[a=2,b=3]", "S(1),P(sum)", "R,S(1)"}, Case{"[a=2,b=3]", "S(0),P(sum)", "R,R"}}) {
    Ranks r(c.mesh);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Tensors old = random_pieces(Layout::parse(c.before, r.lockstep.mesh()), shape, type);
      const auto kind = StepKind::exchange_partials;
      const Tensors at_once = r.exchange(r.step(kind, c.before, c.after, shape), old);
      for (const std::int64_t chunks : {2, 5, 40}) {
        expect_pieces(r.exchange(r.step(kind, c.before, c.after, shape, chunks), old), at_once,
                      std::string(c.before) + " to " + c.after);
      }
    }
  }
}

TEST(Exchange, ManyTensorsAreOneCall) {
  Ranks r("[a=2]");
  const auto made = r.exchange(
      {{r.step(StepKind::all_to_all, "S(0)", "S(1)", {3, 2}),
        {longs({0, 1, 2, 3}).view({2, 2}), longs({4, 5}).view({1, 2})}},
       {r.step(StepKind::all_gather, "S(0)", "R", {5}), {longs({0, 1, 2}), longs({3, 4})}},
       {r.step(StepKind::reduce_scatter, "P(sum)", "S(0)", {3}),
        {longs({1, 2, 3}), longs({10, 20, 30})}}});
  EXPECT_EQ(r.lockstep.world().ledger().totals().calls, 1U);
  ASSERT_EQ(made.size(), 3U);
  expect_pieces(made[0], {longs({0, 2, 4}).view({3, 1}), longs({1, 3, 5}).view({3, 1})}, "columns");
  expect_pieces(made[1], {at::arange(5), at::arange(5)}, "gathered");
  expect_pieces(made[2], {longs({11, 22}), longs({33})}, "reduced");
  const auto even =
      r.exchange({{r.step(StepKind::all_gather, "S(0)", "R", {4}), {longs({0, 1}), longs({2, 3})}},
                  {r.step(StepKind::all_gather, "S(1)", "R", {1, 2}),
                   {longs({5}).view({1, 1}), longs({6}).view({1, 1})}}});
  EXPECT_EQ(r.sent(CallKind::all_gather).calls, 1U);
  expect_pieces(even[0], {at::arange(4), at::arange(4)}, "even");
  expect_pieces(even[1], {longs({5, 6}).view({1, 2}), longs({5, 6}).view({1, 2})}, "columns");
}

TEST(Exchange, GivesWhatIsMadeOfTheNewPieces) {
  Ranks r("[a=2]");
  const StepRoute* step = r.step(StepKind::all_gather, "S(0)", "R", {2});
  const Tensors made =
      start_exchange(*r.pool, {{step, {longs({3}), longs({4})}}},
                     [](const std::vector<Tensors>& all) { return Tensors{all[0][0] * 10}; },
                     {r.call, std::source_location::current()})
          .wait();
  expect_pieces(made, {longs({30, 40})});
  EXPECT_EQ(r.lockstep.world().ledger().entries()[0].op, "test");
}

TEST(Exchange, WithoutValuesSizesAreRight) {
  const auto world = simulate({.size = 3, .rank = 1});
  const Mesh mesh = Mesh::parse("[a=3]");
  const auto pool = std::make_shared<BufferPool>();
  const Call call;
  for (const char* before : {"S(0)", "P(sum)"}) {
    const Layout from = Layout::parse(before, mesh);
    const Layout to = Layout::parse("S(1)", mesh);
    const auto route = make_route(
        *world, std::make_shared<Plan>(Plan{.from = from,
                                            .to = to,
                                            .shape = {5, 4},
                                            .element_size = 4,
                                            .steps = {{StepKind::all_to_all, {0}, from, to}}}));
    const Shape old = route->steps[0].members[0].before;
    const Tensors made =
        start_exchange(*pool, {{&route->steps[0], {at::empty(to_ref(old), at::kMeta)}}},
                       [](std::vector<Tensors> all) { return all[0]; },
                       {call, std::source_location::current()})
            .wait();
    EXPECT_EQ(made[0].sizes(), at::IntArrayRef({5, 2})) << before;
    EXPECT_TRUE(made[0].is_meta());
  }
}

}  // namespace
}  // namespace intarsia
