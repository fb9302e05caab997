#include "intarsia/lockstep.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::expect_whole;
using testing::values;

Layout parse(const char* text, const Mesh& mesh) { return Layout::parse(text, mesh); }

TEST(Lockstep, ATensorHasAPieceOfEveryRank) {
  const Lockstep lockstep("[dp=2,tp=3]");
  World& world = lockstep.world();
  EXPECT_TRUE(world.in_lockstep());
  EXPECT_EQ(world.hosted().size(), 6U);
  const at::Tensor whole = values({5, 7}, 1);
  const at::Tensor t = distribute(whole, parse("S(0),S(1)", lockstep.mesh()), world);
  const auto pieces = locals(t);
  ASSERT_EQ(pieces.size(), 6U);
  EXPECT_TRUE(at::equal(pieces[4], whole.narrow(0, 3, 2).narrow(1, 3, 3)));
  EXPECT_TRUE(at::equal(full(t), whole));
  expect_whole(t.mm(t.t()), whole.mm(whole.t()), "mm");
  EXPECT_NE(show(t).find("rank 5 holds"), std::string::npos);
}

TEST(Lockstep, RefusalsPointToWhatWorks) {
  const Lockstep lockstep("[dp=2]");
  World& world = lockstep.world();
  const at::Tensor t = distribute(values({4}, 1), parse("S(0)", lockstep.mesh()), world);
  expect_error<ValueError>([&] { local(t); }, {"[local]", "2 pieces", "locals()", "local_region"});
  expect_error<ValueError>([&] { world.rank(); }, {"2 ranks", "run_in_process"});
  expect_error<ValueError>(
      [&] { from_local(values({2}, 1), parse("S(0)", lockstep.mesh()), world); },
      {"[from_local]", "from_locals"});
  expect_error<ValueError>(
      [&] { from_locals({values({2}, 1)}, parse("S(0)", lockstep.mesh()), world); },
      {"[from_locals]", "2 ranks", "1 pieces"});
  expect_error<ValueError>(
      [&] {
        from_locals({values({2}, 1), values({3}, 1)}, parse("S(0)", lockstep.mesh()), world);
      },
      {"[from_locals]", "rank 1", "(3)", "`shape`"});
}

TEST(Lockstep, GradientsGoThroughPieces) {
  const Lockstep lockstep("[dp=3]");
  World& world = lockstep.world();
  const Layout rows = parse("S(0)", lockstep.mesh());
  const at::Tensor whole = values({5, 2}, 3);
  const at::Tensor x = distribute(whole, rows, world).detach().requires_grad_();
  std::vector<at::Tensor> pieces = locals(x);
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    pieces[m] = pieces[m] * static_cast<double>(m + 1);
  }
  const at::Tensor y = from_locals(pieces, rows, world, {.shape = std::vector<std::int64_t>{5, 2}});
  (y * y).sum().backward();
  const at::Tensor factor = at::tensor({1.0, 1.0, 2.0, 2.0, 3.0}, at::kDouble).unsqueeze(1);
  expect_whole(x.grad(), 2 * whole * factor * factor, "gradient");
  EXPECT_EQ(layout_of(x.grad()), rows);
}

TEST(Lockstep, OnePieceOfManyMayBeLeftOutOfALoss) {
  const Lockstep lockstep("[dp=2]");
  const Layout rows = parse("S(0)", lockstep.mesh());
  const at::Tensor x = distribute(values({4}, 3), rows, lockstep.world()).detach().requires_grad_();
  locals(x)[1].sum().backward();
  expect_whole(x.grad(), at::tensor({0.0, 0.0, 1.0, 1.0}, at::kDouble), "gradient");
}

TEST(Lockstep, FullIsOneTensorForAll) {
  const Lockstep lockstep("[dp=3]");
  const at::Tensor whole = values({5}, 4);
  const at::Tensor x =
      distribute(whole, parse("S(0)", lockstep.mesh()), lockstep.world()).detach().requires_grad_();
  full(x).square().sum().backward();
  expect_whole(x.grad(), 2 * whole, "gradient");
}

TEST(Lockstep, WritingToTheFullTensorReachesNoRank) {
  const Lockstep lockstep("[dp=3]");
  const at::Tensor x =
      distribute(values({5}, 4), Layout::replicated(lockstep.mesh()), lockstep.world());
  full(x).zero_();
  assert_replicas(x);
  expect_whole(x, values({5}, 4), "untouched");
}

TEST(Lockstep, RedistributeGivesMemoryOfItsOwn) {
  const Lockstep lockstep("[dp=2]");
  const at::Tensor x =
      distribute(values({4}, 4), Layout::replicated(lockstep.mesh()), lockstep.world());
  for (const char* to : {"S(0)", "P(sum)"}) {
    redistribute(x, parse(to, lockstep.mesh())).zero_();
    expect_whole(x, values({4}, 4), to);
  }
}

TEST(Lockstep, RegionsRunOncePerRank) {
  const Lockstep lockstep("[dp=2,tp=2]");
  World& world = lockstep.world();
  const Layout rows = parse("S(0),R", lockstep.mesh());
  const Layout terms = parse("S(0),P(sum)", lockstep.mesh());
  const at::Tensor x = distribute(values({4, 3}, 5), rows, world).detach().requires_grad_();
  int runs = 0;
  const auto out = local_region(
      [&](const std::vector<at::Tensor>& in) {
        ++runs;
        return std::vector<at::Tensor>{in[0] * 0.5};
      },
      {x}, {.in = {rows}, .out = {terms}, .grads = {terms}});
  EXPECT_EQ(runs, 4);
  expect_whole(out[0], values({4, 3}, 5), "two halves");
  out[0].sum().backward();
  expect_whole(x.grad(), at::ones({4, 3}, at::kDouble), "gradient");
}

TEST(Lockstep, ReplicasThatDifferAreNamed) {
  const Lockstep lockstep("[dp=2,tp=2]");
  World& world = lockstep.world();
  const Layout columns = parse("R,S(1)", lockstep.mesh());
  at::Tensor nans = values({2, 4}, 6);
  nans[0][1] = std::nan("");
  const at::Tensor t = distribute(nans, columns, world);
  assert_replicas(t);
  locals(t)[3][1][0] += 1;
  expect_error<WorldError>([&] { assert_replicas(t, "w"); },
                           {"'w'", "f64[2, 4@tp]", "rank 3 differs from rank 1", "(1,0)"});
  assert_replicas(distribute(nans, parse("S(0),P(sum)", lockstep.mesh()), world));
}

TEST(Lockstep, ReplicasAreComparedBetweenProcessesToo) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  testing::on_mesh(mesh, [&](World& world) {
    at::Tensor piece = values({2, 2}, 6);
    piece[0][1] = std::nan("");
    const at::Tensor t = from_local(piece, Layout::parse("R,S(1)", mesh), world);
    assert_replicas(t, "w");
    if (world.rank() == 3) piece[1][0] += 1;
    expect_error<WorldError>([&] { assert_replicas(t, "w"); },
                             {"'w'", "rank 3 differs from rank 1"});
  });
}

TEST(Lockstep, GivesWhatThreadsGive) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=3]");
  const auto program = [&](World& world) {
    const at::Tensor x = distribute(values({7, 5}, 1), Layout::parse("S(0),R", mesh), world);
    const at::Tensor w = distribute(values({5, 4}, 2), Layout::parse("R,S(0)", mesh), world)
                             .detach()
                             .requires_grad_();
    at::Tensor y = x.mm(w).relu();
    at::log_softmax(y, -1).square().mean().backward();
    return full(w.grad());
  };
  const Lockstep lockstep(mesh);
  const at::Tensor here = program(lockstep.world());
  testing::on_mesh(mesh,
                   [&](World& world) { EXPECT_TRUE(at::allclose(program(world), here, 1e-12)); });
}

TEST(Lockstep, RandomNumbersAreThoseOfOneRank) {
  const Lockstep alone("[a=1]");
  const Lockstep many("[a=3,b=2]");
  at::manual_seed(3);
  const at::Tensor one = randn({5, 3}, Layout::parse("R", alone.mesh()), alone.world());
  at::manual_seed(3);
  const at::Tensor six = randn({5, 3}, Layout::parse("S(1),S(0)", many.mesh()), many.world());
  EXPECT_TRUE(at::equal(full(one), full(six)));
}

TEST(Lockstep, CollectivesEnterLedgerAndBill) {
  const Lockstep lockstep("[dp=4,tp=2]");
  World& world = lockstep.world();
  const Budget budget(world);
  const at::Tensor t = distribute(values({8, 4}, 1), parse("S(0),R", lockstep.mesh()), world);
  redistribute(t, Layout::replicated(lockstep.mesh()));
  budget.expect("1 S->R");
  EXPECT_EQ(world.ledger().totals(CallKind::all_gather).calls, 1U);
  EXPECT_EQ(world.ledger().totals(CallKind::all_gather).bytes, 8U * 8U * 8U);
}

TEST(Lockstep, AfterTheScopeMovesAreRefused) {
  at::Tensor t;
  {
    const Lockstep lockstep("[dp=2]");
    t = distribute(values({4}, 1), parse("S(0)", lockstep.mesh()), lockstep.world());
  }
  EXPECT_THROW(full(t), WorldError);
}

// ---- ranks outside the mesh ------------------------------------------------------------------

std::shared_ptr<World> nobody(std::int64_t size) {
  WorldParts parts;
  parts.hosted = {};
  parts.size = size;
  return World::assemble(std::move(parts));
}

TEST(OutsideTheMesh, OpsGiveTheSameSpecs) {
  const Lockstep lockstep("[dp=2,tp=2]");
  const auto outside = nobody(4);
  const auto both = [&](const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& op) {
    std::vector<std::string> texts;
    for (World* world : {&lockstep.world(), outside.get()}) {
      const at::Tensor a = distribute(values({4, 6}, 1), parse("S(0),R", lockstep.mesh()), *world);
      const at::Tensor b = distribute(values({4, 6}, 2), parse("R,S(1)", lockstep.mesh()), *world);
      const at::Tensor out = op(a, b);
      std::ostringstream text;
      text << describe(out) << out.strides();
      texts.push_back(text.str());
    }
    EXPECT_EQ(texts[0], texts[1]);
  };
  both([](auto& a, auto& b) { return a + b; });
  both([](auto& a, auto& b) { return a.eq(b); });
  both([](auto& a, auto& b) { return a.mm(b.t()); });
  both([](auto& a, auto&) { return a.sum(0).to(at::kFloat); });
  both([](auto& a, auto&) { return a.view({2, 2, 6}).transpose(0, 2); });
  both([](auto& a, auto&) { return a.argmax(1); });
  both([](auto& a, auto&) { return std::get<1>(a.kthvalue(2, 1)); });
  both([](auto& a, auto&) { return at::linalg_inv(a.mm(a.t())); });
  both([](auto& a, auto& b) { return at::cdist(a, b); });
  both([](auto& a, auto&) { return a.clone().relu_(); });
  both([](auto& a, auto& b) { return at::cat({a, b}, 1).unbind(0)[1]; });
  both([](auto& a, auto&) { return at::dropout(a, 0.5, true); });
}

TEST(OutsideTheMesh, ValuesAreRefused) {
  const auto outside = nobody(2);
  const Mesh mesh = Mesh::parse("[a=2]");
  const at::Tensor t = distribute(values({4}, 1), Layout::parse("S(0)", mesh), *outside);
  EXPECT_THROW(t.sum().item(), c10::ValueError);
  EXPECT_THROW(t.nonzero(), c10::ValueError);
  expect_error<ValueError>([&] { full(t); }, {"[full]", "no rank of [a=2]"});
}

}  // namespace
}  // namespace intarsia
