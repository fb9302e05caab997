#include "tensor/move/mover.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <latch>
#include <limits>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/in_process.h"
#include "intarsia/lockstep.h"
#include "intarsia/simulate.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Tensors = std::vector<at::Tensor>;
using PlanPointer = std::shared_ptr<const Plan>;

/// One change of the layout.
struct Change {
  StepKind kind;
  AxisList axes;
  const char* after;
};

PlanPointer plan_of(const Mesh& mesh, const Shape& shape, const char* from,
                    const std::vector<Change>& changes) {
  Plan plan{.from = Layout::parse(from, mesh), .to = Layout::parse(from, mesh), .shape = shape};
  for (const Change& c : changes) {
    const Layout after = Layout::parse(c.after, mesh);
    plan.steps.push_back({c.kind, c.axes, plan.to, after});
    plan.to = after;
  }
  return std::make_shared<const Plan>(plan);
}

at::Tensor longs(std::vector<std::int64_t> values) { return at::tensor(values, at::kLong); }
at::Tensor floats(std::vector<float> values) { return at::tensor(values, at::kFloat); }

void expect_pieces(const Tensors& got, const Tensors& want, const std::string& what = {}) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t m = 0; m < got.size(); ++m) {
    EXPECT_EQ(got[m].sizes(), want[m].sizes()) << what << " of rank " << m;
    EXPECT_TRUE(at::equal(got[m], want[m])) << what << " of rank " << m << '\n' << got[m];
  }
}

PiecesToMove along(PlanPointer plan, Tensors pieces) {
  return {std::move(pieces), std::move(plan)};
}

/// Ranks in one process, with a mover.
struct Ranks {
  explicit Ranks(const char* mesh) : lockstep(mesh), mover(lockstep.world()) {}

  Tensors move(const Shape& shape, const char* from, const std::vector<Change>& changes,
               const Tensors& pieces, bool source_stays = true) {
    const PlanPointer plan = plan_of(lockstep.mesh(), shape, from, changes);
    return mover.start({pieces, plan}, {.source_stays = source_stays}, site()).wait();
  }
  std::vector<Tensors> run(std::vector<PiecesToMove> tensors) {
    sent.clear();
    return mover.run(std::move(tensors), site(), sent);
  }
  /// Of one tensor among those of the last run.
  LedgerTotals sent_of(std::size_t tensor) const {
    LedgerTotals sum;
    for (const LedgerTotals& step : sent.at(tensor)) {
      sum.calls += step.calls;
      sum.bytes += step.bytes;
    }
    return sum;
  }
  CallSite site() const { return {call, std::source_location::current()}; }
  std::uint64_t calls() const { return lockstep.world().ledger().totals().calls; }

  Call call{.tensor = "x", .op = "test"};
  Lockstep lockstep;
  Mover mover;
  std::vector<StepsSent> sent;
};

TEST(Mover, RefusesPiecesThatDoNotFitThePlan) {
  Ranks r("[a=2]");
  const std::vector<Change> gather{{StepKind::all_gather, {0}, "R"}};
  expect_error<ValueError>(
      [&] {
        r.move({5}, "S(0)", gather, {at::ones({3}), at::ones({3})});
      },
      {"[redistribute_pieces] the piece of rank 1 has sizes (3)",
       "[a=2] S(0) gives it (2) of (5)"});
  expect_error<ValueError>([&] { r.move({5}, "S(0)", gather, {at::ones({3})}); },
                           {"hosts 2 ranks of [a=2], but 1 pieces were given"});
  const auto plan = plan_of(r.lockstep.mesh(), {5}, "S(0)", gather);
  expect_error<ValueError>(
      [&] {
        r.run({along(plan, {at::ones({3}), at::ones({1})})});
      },
      {"rank 1 has sizes (1)"});
  EXPECT_EQ(r.calls(), 0U);
}

TEST(Mover, CountsWhatEachStepHandsOver) {
  Ranks r("[a=2,b=2]");
  const auto plan =
      plan_of(r.lockstep.mesh(), {8}, "S(0),P(sum)",
              {{StepKind::all_reduce, {1}, "S(0),R"}, {StepKind::all_gather, {0}, "R,R"}});
  StepsSent sent(2);
  const Tensors pieces(4, at::ones({4}, at::kDouble));
  r.mover.start({pieces, plan}, {}, r.site(), sent).wait();
  EXPECT_EQ(sent[0].calls, 1U);
  EXPECT_EQ(sent[0].bytes, 4U * 4U * 8U) << "of all ranks, which are in this process";
  EXPECT_EQ(sent[1].calls, 1U);
  EXPECT_EQ(sent[1].bytes, 4U * 4U * 8U);
}

TEST(Mover, RemembersTheRoutesOfPlans) {
  Ranks r("[a=2]");
  const std::vector<Change> gather{{StepKind::all_gather, {0}, "R"}};
  const auto plan = plan_of(r.lockstep.mesh(), {4}, "S(0)", gather);
  const auto other = plan_of(r.lockstep.mesh(), {6}, "S(0)", gather);
  const auto first = r.mover.route(plan);
  EXPECT_EQ(first->plan, plan);
  EXPECT_EQ(r.mover.route(plan), first);
  EXPECT_EQ(r.mover.route(other)->plan, other);
  // It keeps 1,024 of them: some of more plans come to the same place.
  std::vector<PlanPointer> many;
  for (std::int64_t i = 0; i < 1025; ++i) {
    many.push_back(plan_of(r.lockstep.mesh(), {i}, "R", {{StepKind::slice, {0}, "S(0)"}}));
    EXPECT_EQ(r.mover.route(many.back())->plan, many.back());
  }
  r.lockstep.world().close();
  expect_error<WorldError>([&] { (void)r.mover.route(plan); },
                           {"[redistribute] the world is closed"});
}

TEST(Mover, SlicesShareMemoryWhereTheyCan) {
  Ranks r("[a=2]");
  const at::Tensor full = at::arange(12).view({4, 3});
  const Tensors copies{full, full.clone()};
  const Tensors rows = r.move({4, 3}, "R", {{StepKind::slice, {0}, "S(0)"}}, copies);
  expect_pieces(rows, full.split(2, 0));
  EXPECT_TRUE(rows[1].is_alias_of(copies[1]));
  const Tensors own = r.move({4, 3}, "R", {{StepKind::slice, {0}, "S(0)"}}, copies, false);
  expect_pieces(own, full.split(2, 0));
  EXPECT_FALSE(own[1].is_alias_of(copies[1])) << "the source may be written to";
  const Tensors columns = r.move({4, 3}, "R", {{StepKind::slice, {0}, "S(1)"}}, copies);
  expect_pieces(columns, full.split(2, 1));
  EXPECT_TRUE(columns[0].is_contiguous());
  expect_pieces(
      r.move({8}, "R", {{StepKind::slice, {0}, "SS(0,2)"}}, {at::arange(8), at::arange(8)}),
      {longs({0, 1, 4, 5}), longs({2, 3, 6, 7})}, "blocks");
  expect_pieces(r.move({1}, "R", {{StepKind::slice, {0}, "S(0)"}}, {longs({5}), longs({5})}),
                {longs({5}), longs({})}, "one element");
  EXPECT_EQ(r.calls(), 0U);
}

TEST(Mover, SlicesOfExpandedTensorsTakeNoMoreThanTheirOwnMemory) {
  Ranks r("[a=2]");
  const at::Tensor one = at::full({1, 1}, 7.0F);
  const std::vector<Change> by_rows{{StepKind::slice, {0}, "S(0)"}};
  const at::Tensor expanded = one.expand({1000, 3});
  for (const at::Tensor& half : r.move({1000, 3}, "R", by_rows, {expanded, expanded})) {
    EXPECT_TRUE(at::equal(half, at::full({500, 3}, 7.0F)));
    EXPECT_EQ(half.storage().nbytes(), 500U * 3U * 4U);
  }
  const at::Tensor two = one.expand({2, 1});
  for (const at::Tensor& row : r.move({2, 1}, "R", by_rows, {two, two})) {
    EXPECT_EQ(row.strides(), at::IntArrayRef({1, 1})) << "as of any piece of one element";
  }
  const at::Tensor turned = at::arange(12).view({3, 4}).t();
  expect_pieces(r.move({4, 3}, "R", by_rows, {turned, turned}), turned.split(2, 0), "turned");
  const at::Tensor zero = at::_efficientzerotensor({4, 3}, at::kFloat);
  expect_pieces(r.move({4, 3}, "R", by_rows, {zero, zero}), at::zeros({4, 3}).split(2, 0), "zero");
}

TEST(Mover, MakesPartialValuesOfWhatARankHolds) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor x = floats({1, 2, 3});
  Ranks r("[a=2]");
  const auto made = [&](const char* from, const char* to, const Tensors& pieces) {
    return r.move({3}, from, {{StepKind::make_partial, {0}, to}}, pieces);
  };
  expect_pieces(made("R", "P(sum)", {x, x}), {x, floats({0, 0, 0})}, "sum");
  expect_pieces(made("R", "P(prod)", {x, x}), {x, floats({1, 1, 1})}, "product");
  expect_pieces(made("R", "P(avg)", {x, x}), {x, x}, "average");
  const Tensors sharded{floats({1, 2}), floats({3})};
  expect_pieces(made("S(0)", "P(sum)", sharded), {floats({1, 2, 0}), floats({0, 0, 3})}, "S");
  expect_pieces(made("S(0)", "P(max)", sharded), {floats({1, 2, -inf}), floats({-inf, -inf, 3})},
                "maximum");
  Ranks four("[a=2,b=2]");
  const at::Tensor none = floats({0, 0, 0});
  expect_pieces(four.move({3}, "R,S(0)", {{StepKind::make_partial, {0, 1}, "P(sum),P(sum)"}},
                          {sharded[0], sharded[1], sharded[0], sharded[1]}),
                {floats({1, 2, 0}), floats({0, 0, 3}), none, none}, "two axes");
  EXPECT_EQ(r.calls() + four.calls(), 0U);
}

TEST(Mover, RunsAllStepsInTheirOrder) {
  Ranks r("[a=2,b=2]");
  // Slices before, a reduction over b, a gather over a, and a slice after them.
  const Tensors made = r.move({2, 3}, "R,P(sum)",
                              {{StepKind::slice, {0}, "S(0),P(sum)"},
                               {StepKind::all_reduce, {1}, "S(0),R"},
                               {StepKind::all_gather, {0}, "R,R"},
                               {StepKind::relabel, {}, "R,R"},
                               {StepKind::slice, {1}, "R,S(1)"}},
                              {at::arange(6).view({2, 3}), at::full({2, 3}, 10),
                               at::arange(6).view({2, 3}), at::full({2, 3}, 10)});
  const Tensors halves{longs({10, 11, 13, 14}).view({2, 2}), longs({12, 15}).view({2, 1})};
  expect_pieces(made, {halves[0], halves[1], halves[0], halves[1]});
  EXPECT_EQ(r.calls(), 2U);
  EXPECT_EQ(r.lockstep.world().ledger().entries()[0].kind, CallKind::all_reduce);
  EXPECT_EQ(r.mover.pool().live(), 0);
}

TEST(Mover, ScattersByTheBackendWhereItDoesThatWell) {
  const auto calls = [](const char* backend, const Shape& shape) {
    const auto world = simulate({.size = 2, .rank = 0, .backend = backend});
    Mover mover(*world);
    const Call call;
    const PlanPointer plan =
        plan_of(Mesh::parse("[a=2]"), shape, "P(sum)", {{StepKind::reduce_scatter, {0}, "S(0)"}});
    const Tensors made = mover
                             .start({{at::empty(to_ref(shape), at::kMeta)}, plan}, {},
                                    {call, std::source_location::current()})
                             .wait();
    EXPECT_EQ(made[0].sizes(), at::IntArrayRef({2, shape[1]}));
    return world->ledger().totals(CallKind::reduce_scatter).calls;
  };
  EXPECT_EQ(calls("nccl", {4, 3}), 1U);
  EXPECT_EQ(calls("gloo", {4, 3}), 0U) << "Gloo has none";
  EXPECT_EQ(calls("nccl", {3, 3}), 0U) << "pieces are uneven";
}

// A gather of equal pieces and an exchange of rows send what they were given, and not a copy.
TEST(Mover, TheSourceMayBeWrittenToWhileItIsSentIfItDoesNotStay) {
  const Mesh mesh = Mesh::parse("[a=2]");
  const std::vector<PlanPointer> plans{
      plan_of(mesh, {2, 4}, "S(1)", {{StepKind::all_to_all, {0}, "S(0)"}}),
      plan_of(mesh, {4, 2}, "S(0)", {{StepKind::all_gather, {0}, "R"}})};
  for (const PlanPointer& plan : plans) {
    std::latch written(1);
    run_in_process(2, [&](World& world) {
      Mover mover(world);
      const Call call;
      at::Tensor piece = at::full({2, 2}, world.rank() + 1);
      if (world.rank() == 1) written.wait();
      Pending under_way = mover.start({{piece}, plan}, {.source_stays = false},
                                      {call, std::source_location::current()});
      if (world.rank() == 0) {
        piece.fill_(-1);
        written.count_down();
      }
      EXPECT_EQ(under_way.tensor().min().item<std::int64_t>(), 1);
    });
  }
}

TEST(Mover, ManyTensorsShareTheirCalls) {
  Ranks r("[a=2]");
  const Mesh& mesh = r.lockstep.mesh();
  const auto reduce = [&](const char* how) {
    return plan_of(mesh, {2}, how, {{StepKind::all_reduce, {0}, "R"}});
  };
  const auto made = r.run({along(reduce("P(sum)"), {longs({1, 2}), longs({10, 20})}),
                           along(reduce("P(max)"), {longs({1, 20}), longs({10, 2})}),
                           along(reduce("P(sum)"), {floats({0.5, 1}), floats({2, 4})}),
                           along(plan_of(mesh, {2}, "P(sum)",
                                         {{StepKind::slice, {}, "P(sum)"},
                                          {StepKind::all_reduce, {0}, "R"},
                                          {StepKind::slice, {0}, "S(0)"}}),
                                 {longs({3, 4}), longs({30, 40})})});
  EXPECT_EQ(r.calls(), 3U) << "sums of integers, the maximum, and floats";
  expect_pieces(made[0], {longs({11, 22}), longs({11, 22})}, "first");
  expect_pieces(made[1], {longs({10, 20}), longs({10, 20})}, "maximum");
  expect_pieces(made[2], {floats({2.5, 5}), floats({2.5, 5})}, "floats");
  expect_pieces(made[3], {longs({33}), longs({44})}, "with steps of its own");
  EXPECT_FALSE(made[0][0].is_alias_of(made[3][0])) << "each has memory of its own";
  EXPECT_EQ(r.sent_of(0).calls, 1U) << "the first of a call has it";
  EXPECT_EQ(r.sent_of(3).calls, 0U);
  EXPECT_EQ(r.sent_of(0).bytes, 32U) << "two numbers of two ranks";
  EXPECT_EQ(r.sent_of(2).bytes, 16U);
  EXPECT_EQ(r.sent_of(3).bytes, 32U);
  EXPECT_EQ(r.sent[3][0].bytes, 0U) << "a slice";
  // Equal pieces are gathered by a call that uneven ones cannot share.
  const auto gather = [&](const Shape& shape) {
    return plan_of(mesh, shape, "S(0)", {{StepKind::all_gather, {0}, "R"}});
  };
  r.run({along(gather({2}), {longs({1}), longs({2})}),
         along(gather({3}), {longs({1, 2}), longs({3})})});
  EXPECT_EQ(r.lockstep.world().ledger().totals(CallKind::all_gather).calls, 1U);
  EXPECT_EQ(r.lockstep.world().ledger().totals(CallKind::all_to_all).calls, 1U);
}

TEST(Mover, ManyTensorsGoOnTogetherAsLongAsTheyCan) {
  Ranks r("[a=2,b=2]");
  const Mesh& mesh = r.lockstep.mesh();
  // x is gathered over a, y over b and then over a: x waits for nobody, y goes alone.
  const at::Tensor x = at::arange(4);
  const at::Tensor y = at::arange(8);
  const auto made = r.run(
      {along(plan_of(mesh, {4}, "S(0),R", {{StepKind::all_gather, {0}, "R,R"}}),
             {x.slice(0, 0, 2), x.slice(0, 0, 2), x.slice(0, 2, 4), x.slice(0, 2, 4)}),
       along(plan_of(mesh, {8}, "S(0),S(0)",
                     {{StepKind::all_gather, {1}, "S(0),R"}, {StepKind::all_gather, {0}, "R,R"}}),
             y.split(2))});
  EXPECT_EQ(r.calls(), 3U);
  expect_pieces(made[0], {x, x, x, x}, "x");
  expect_pieces(made[1], {y, y, y, y}, "y");
}

TEST(Mover, BringsManyTensorsToAnotherMeshInOneExchange) {
  Ranks r("[a=3]");
  const auto way = [&](const Shape& shape) {
    return make_route_between(r.lockstep.world(), Layout::parse("[a=2] S(0)"),
                              Layout::parse("[a=3] S(0)"), shape, {0, 1, 2});
  };
  const at::Tensor rows = at::arange(6).view({3, 2});
  const at::Tensor none = at::empty({0}, at::kLong);
  const auto seven = way({7});
  const auto matrix = way({3, 2});
  const auto made =
      r.mover.run({Moving{&seven->route, {longs({0, 1, 2, 3}), longs({4, 5, 6}), none}},
                   Moving{&matrix->route, {rows.slice(0, 0, 2), rows.slice(0, 2, 3), none}}},
                  r.site());
  EXPECT_EQ(r.calls(), 1U);
  expect_pieces(made[0], {longs({0, 1, 2}), longs({3, 4, 5}), longs({6})}, "elements");
  expect_pieces(made[1], rows.split(1, 0), "rows");
  EXPECT_TRUE(r.mover.run(std::vector<Moving>(), r.site()).empty());
  const auto outside = r.mover.run({Moving{&seven->route, {}}}, r.site());
  ASSERT_EQ(outside.size(), 1U);
  EXPECT_TRUE(outside[0].empty()) << "a rank outside of both meshes has no pieces";
}

}  // namespace
}  // namespace intarsia
