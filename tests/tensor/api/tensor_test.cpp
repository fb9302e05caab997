// Distributed tensors as values: making, describing, gathering, modes, the cache.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "error_text.h"
#include "intarsia/boxes.h"
#include "intarsia/collectives.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "tensor/core/spec.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::expect_whole;
using testing::on_mesh;
using testing::some_layouts;
using testing::values;

TEST(Tensor, FactoriesMakeTheirPiecesOnly) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_mesh(mesh, [&](World& world) {
    for (const std::string& text : some_layouts()) {
      const Layout layout = Layout::parse(text, mesh);
      const Coordinate here = *mesh.coordinate_of(world.rank());
      const std::vector<std::int64_t> sizes{7, 5};
      const auto check = [&](const Tensor& got, const Tensor& want) {
        EXPECT_EQ(layout_of(got), layout);
        const Shape piece = local_shape(layout, sizes, here);
        EXPECT_EQ(local(got).sizes(), at::IntArrayRef(piece.data(), piece.size())) << text;
        expect_whole(got, want, text);
      };
      check(zeros(sizes, layout, world, at::kDouble), at::zeros(sizes, at::kDouble));
      check(ones(sizes, layout, world), at::ones(sizes));
      check(full_of(sizes, 2.5, layout, world), at::full(sizes, 2.5));
      EXPECT_EQ(empty(sizes, layout, world, at::kHalf).scalar_type(), at::kHalf);
      if (layout.least_dims() > 1 || text.starts_with("P(avg)")) continue;
      expect_whole(arange(3, 40, 5, layout, world), at::arange(3, 40, 5), text);
      expect_whole(arange(0.5, 3, 0.25, layout, world), at::arange(0.5, 3, 0.25), text);
    }
    const Tensor w =
        ones({4, 4}, Layout::parse("S(0),R", mesh), world, at::TensorOptions().requires_grad(true));
    EXPECT_TRUE(w.requires_grad());
    EXPECT_TRUE(w.is_leaf());
  });
}

TEST(Tensor, DescribesItselfWithoutCommunicating) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_mesh(mesh, [&](World& world) {
    if (world.rank() != 0) return;  // the others do not take part
    const Tensor x =
        distribute(at::arange(12.).view({4, 3}), Layout::parse("S(0),P(sum)", mesh), world);
    EXPECT_EQ(describe(x), "f32[4@dp, 3] P(sum)@tp on [dp=2,tp=2]");
    EXPECT_EQ(describe(at::ones({2, 3})), "f32[2, 3] plain");
    EXPECT_NE(show(x).find("rank 0 holds [0,2)x[0,3)"), std::string::npos) << show(x);
    EXPECT_NE(show(x).find("5"), std::string::npos);
    EXPECT_EQ(world.ledger().totals().calls, 0U);
  });
}

TEST(Tensor, RefusalsNameTheValues) {
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[a=1]");
  const Mesh other = Mesh::parse("[b=1]");
  const Tensor x = distribute(at::ones({4, 3}), Layout::parse("S(0)", mesh), *world);
  const Tensor y = distribute(at::ones({4, 3}), Layout::parse("S(0)", other), *world);
  expect_error<ValueError>([&] { distribute(x, Layout::parse("R", mesh), *world); },
                           {"[distribute]", "distributed already", "f32[4@a, 3]"});
  expect_error<ValueError>([&] { distribute(at::ones({}), Layout::parse("S(0)", mesh), *world); },
                           {"[distribute]", "dimension 0"});
  expect_error<ValueError>([&] { redistribute(at::ones({2}), Layout::parse("R", mesh)); },
                           {"[redistribute]", "f32[2] plain", "distribute()"});
  expect_error<ValueError>([&] { redistribute(x, Layout::parse("R", other)); },
                           {"[redistribute]", "[a=1]", "[b=1]"});
  expect_error<ValueError>(
      [&] { distribute(at::ones({2}, at::kLong), Layout::parse("P(avg)", mesh), *world); },
      {"[distribute]", "i64", "P(avg)"});
  expect_error<ValueError>([&] { layout_of(at::ones({2})); }, {"[layout_of]", "plain"});
  expect_error<c10::ValueError>(
      [&] { x + y; }, {"aten::add.Tensor", "different meshes", "[a=1]", "[b=1]", "one mesh"});
  expect_error<c10::ValueError>(
      [&] {
        x + at::ones({5, 3});
      },
      {"aten::add", "(5,3)", "do not broadcast"});
  expect_error<c10::ValueError>([&] { x.mm(x); }, {"aten::mm", "(4,3)", "cannot be multiplied"});
  expect_error<ValueError>([&] { zeros({-1}, Layout::parse("R", mesh), *world); },
                           {"[zeros]", "-1"});
  expect_error<ValueError>([&] { arange(0, 1, -1, Layout::parse("R", mesh), *world); },
                           {"[arange]", "-1"});
  expect_error<ValueError>([&] { randint(3, 3, {2}, Layout::parse("R", mesh), *world); },
                           {"[randint]", "[3, 3)"});
  expect_error<ValueError>([&] { arange(0, 4, 1, Layout::parse("P(avg)", mesh), *world); },
                           {"[arange]", "i64", "P(avg)"});
  expect_error<ValueError>([&] { set_cache_limit(*world, 0); }, {"[set_cache_limit]"});
}

TEST(Tensor, RanksOutsideTheMeshHoldNothing) {
  const Mesh mesh = Mesh::parse("[a=2]");
  run_in_process(3, [&](World& world) {
    const Layout layout = Layout::parse("S(0)", mesh);
    const Tensor x = distribute(at::ones({4, 2}), layout, world);
    const Tensor y = ((x.detach() + 1).t() * 2).sum(0, true);
    EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{1, 4}));
    if (world.rank() < 2) {
      EXPECT_EQ(at::linalg_svdvals(x).size(0), 2);
      EXPECT_EQ(local(y).sum().item<float>(), 16);
    } else {
      expect_error<ValueError>([&] { local(y); }, {"[local]", "0 pieces"});
      EXPECT_EQ(at::linalg_svdvals(x).size(0), 2);  // no rule: replicated
      expect_error<c10::ValueError>([&] { x.nonzero(); }, {"nonzero", "ranks of the mesh"});
    }
  });
}

TEST(Tensor, FromLocalKeepsMemoryOrRefuses) {
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[a=1]");
  const Layout layout = Layout::parse("S(0)", mesh);
  const Tensor big = at::zeros({4, 4});
  expect_error<ValueError>([&] { from_local(big.narrow(1, 0, 2), layout, *world); },
                           {"[from_local]", "strides (4,1)", "contiguous()"});
  expect_error<ValueError>(
      [&] {
        from_local(big.t(), layout, *world, {.strides = {{2, 1}}});
      },
      {"[from_local]", "(2,1)", "dense"});
  from_local(big.t(), layout, *world, {.strides = {{1, 4}}}).add_(1);
  EXPECT_EQ(big.sum().item<float>(), 16);
}

TEST(Tensor, RanksWithoutElementsKeepTheirTerms) {
  const Mesh mesh = Mesh::parse("[a=3]");
  on_mesh(mesh, [&](World& world) {
    // One index to sum over, on three ranks, and a bias of which every rank has a term.
    const double share = world.rank() == 0 ? 4 : -1;
    const Layout terms = Layout::parse("P(sum)", mesh);
    const Tensor bias = from_local(values({5}, 1) * share, terms, world);
    const Tensor whole = values({5}, 1) * 2;
    const auto split = [&](const Tensor& t, const char* text) {
      return distribute(t, Layout::parse(text, mesh), world);
    };
    const Tensor x = values({4, 1}, 2);
    const Tensor w = values({1, 5}, 3);
    expect_whole(at::addmm(bias, split(x, "S(1)"), split(w, "S(0)")), at::addmm(whole, x, w),
                 "addmm");
    const Tensor image = values({2, 1, 6, 6}, 4);
    const Tensor kernel = values({5, 1, 3, 3}, 5);
    for (const char* text : {"S(1)", "R", "S(0)"}) {
      expect_whole(at::conv2d(split(image, text), split(kernel, "S(1)"), bias),
                   at::conv2d(image, kernel, whole), "conv");
    }
  });
}

TEST(Tensor, NumbersInDistributedTensors) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor x = distribute(values({7, 3}, 1), Layout::parse("S(1)", mesh), world);
    const Tensor places = at::tensor({2, 5}, at::kLong);
    const auto parts =
        at::tensor_split(x, distribute(places, Layout::parse("S(0)", mesh), world), 0);
    ASSERT_EQ(parts.size(), 3U);
    expect_whole(parts[1], values({7, 3}, 1).slice(0, 2, 5), "part");
  });
}

TEST(Tensor, AllcloseLooksAtEveryPiece) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor whole = values({7, 3}, 1);
    Tensor other = whole.clone();
    other[6][2] += 1;  // in the last rank's piece
    const Tensor x = distribute(whole, Layout::parse("S(0)", mesh), world);
    EXPECT_TRUE(at::allclose(x, distribute(whole, Layout::parse("S(1)", mesh), world)));
    EXPECT_FALSE(at::allclose(x, distribute(other, Layout::parse("S(0)", mesh), world)));
  });
}

TEST(Tensor, TheSameMeanLossTwice) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor scores = distribute(values({6, 5}, 1), Layout::parse("S(0)", mesh), world);
    const Tensor labels = distribute(at::arange(6) % 5, Layout::parse("S(0)", mesh), world);
    const Tensor want = at::cross_entropy_loss(values({6, 5}, 1), at::arange(6) % 5);
    for (int i = 0; i < 3; ++i) expect_whole(at::cross_entropy_loss(scores, labels), want, "loss");
    for (int i = 0; i < 3; ++i) {
      const auto norms = at::_foreach_norm({scores, scores}, 2);
      expect_whole(norms[1], values({6, 5}, 1).norm(), "norm");
    }
  });
}

TEST(Tensor, TwoWorldsDoNotMix) {
  const auto one = World::connect(Rendezvous{});
  const auto two = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[a=1]");
  const Tensor x = distribute(at::ones({4}), Layout::parse("R", mesh), *one);
  const Tensor y = distribute(at::ones({4}), Layout::parse("R", mesh), *two);
  expect_error<c10::ValueError>([&] { x + y; }, {"aten::add.Tensor", "two worlds"});
}

TEST(Communication, ModesAndBudget) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor x = distribute(values({4, 6}, 1), Layout::parse("S(1)", mesh), world);
    {
      const CommunicationScope scope(world, Communication::explicit_only);
      expect_error<c10::ValueError>([&] { x.sort(1); }, {"aten::sort", "f64[4, 6@a]", "over a",
                                                         "S->S", "redistribute(tensor, \"S(0)\")"});
      const Tensor whole = redistribute(x, Layout::parse("R", mesh));
      expect_whole(std::get<0>(whole.sort(1)), std::get<0>(values({4, 6}, 1).sort(1)), "sort");
      // What an op sends by its nature is not hidden: the two reductions of a cut softmax.
      Budget budget(world);
      x.softmax(1);
      budget.expect("2 P->R");
      EXPECT_EQ(bill(world).entries.back().op, "aten::_softmax");
    }
    clear_bill(world);
    {
      const ModuleScope outer("encoder");
      const ModuleScope inner("head");
      x.sort(1);
    }
    const Bill sent = bill(world);
    ASSERT_EQ(sent.entries.size(), 1U);
    EXPECT_EQ(sent.entries[0].op, "aten::sort");
    EXPECT_EQ(sent.entries[0].axis, "a");
    EXPECT_EQ(sent.entries[0].module, "encoder.head");
    EXPECT_EQ(sent.entries[0].transition, "S->S");
    EXPECT_EQ(sent.bytes(), 4U * 3U * 8U);
    EXPECT_NE(sent.to_string().find("encoder.head"), std::string::npos);
    EXPECT_EQ(world.ledger().entries().back().module, "encoder.head");
    Budget budget(world);
    budget.expect("");
    x.clone().nonzero();
    expect_error<ValueError>([&] { budget.expect(""); }, {"[Budget]", "1 S->R", "nonzero"});
    EXPECT_TRUE(bill(world).entries.back().fallback);
  });
}

TEST(Communication, ExplicitModeHoldsInBackward) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    Tensor x =
        distribute(values({4, 6}, 1), Layout::parse("S(0)", mesh), world).set_requires_grad(true);
    const Tensor w = distribute(values({6, 6}, 2), Layout::parse("S(1)", mesh), world);
    const Tensor y = redistribute(x, Layout::parse("R", mesh)).mm(w);
    const Tensor loss = (y.softmax(0)).sum();
    set_communication(world, Communication::explicit_only);
    // y's gradient is cut by columns: the gradient of softmax and of the product need no move, and
    // the one that redistribute makes was asked for.
    loss.backward();
    set_communication(world, Communication::automatic);
    // A sum of terms and of rows: the gradient is cut by rows, and its product with a table that is
    // cut by columns has to move one of them.
    Tensor table = distribute(values({6, 6}, 2), Layout::parse("S(0)", mesh), world);
    Tensor z = distribute(values({4, 6}, 1), Layout::parse("S(1)", mesh), world);
    table.set_requires_grad(true);
    z.set_requires_grad(true);
    const Tensor rows = distribute(values({4, 6}, 3), Layout::parse("S(0)", mesh), world);
    const Tensor bad = (z.mm(table) + rows).pow(2).sum();
    set_communication(world, Communication::explicit_only);
    expect_error<c10::ValueError>([&] { bad.backward(); }, {"aten::mm", "backward moves", "S->S"});
    set_communication(world, Communication::automatic);
  });
}

TEST(PlainTensors, ThatDifferBetweenRanksAreNamed) {
  const Mesh mesh = Mesh::parse("[a=3]");
  on_mesh(mesh, [&](World& world) {
    const Tensor x = distribute(values({4, 6}, 1), Layout::parse("S(1)", mesh), world);
    const Tensor same = values({4, 6}, 2);
    x* same;
    x + 1;
    check_plain_tensors(world);
    Tensor mask = values({6}, 3);
    if (world.rank() == 2) mask[4] = 7;
    x* mask;
    x* same;
    expect_error<WorldError>([&] { check_plain_tensors(world); },
                             {"[aten::mul.Tensor]", "f64[6] plain", "ranks 2", "rank 0"});
    set_plain_tensors(world, PlainTensors::checked);
    x* same;
    expect_error<c10::DistError>([&] { x + mask; },
                                 {"[aten::add.Tensor]", "f64[6] plain", "ranks 2"});
    set_plain_tensors(world, PlainTensors::refused);
    expect_error<c10::ValueError>([&] { x + same; }, {"aten::add.Tensor", "f64[4, 6] plain"});
    x* at::tensor(2.0);
    // Large ones are sampled.
    set_plain_tensors(world, PlainTensors::checked);
    const Tensor big = zeros({64, 1024}, Layout::parse("S(0)", mesh), world, at::kDouble);
    Tensor table = at::zeros({64, 1024}, at::kDouble);
    big + table;
    if (world.rank() == 1) table.fill_(1);
    expect_error<c10::DistError>([&] { big + table; }, {"f64[64, 1024] plain", "ranks 1"});
  });
}

TEST(Cache, CountsAndStaysBounded) {
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[a=1]");
  const Layout layout = Layout::parse("S(0)", mesh);
  const Tensor x = distribute(at::ones({4, 3}), layout, *world);
  const auto before = cache_counters(*world);
  for (int i = 0; i < 10; ++i) x + i;
  for (int i = 0; i < 10; ++i) x.mul(0.5 + i);
  const auto after = cache_counters(*world);
  EXPECT_EQ(after.misses - before.misses, 2U) << "values of scalars are no part of the key";
  EXPECT_EQ(after.hits - before.hits, 18U);
  set_cache_limit(*world, 64);
  const std::size_t specs = Spec::alive();
  for (std::int64_t n = 1; n <= 500; ++n) ones({n, 2}, layout, *world) + 1;
  EXPECT_LE(cache_counters(*world).entries, 64U);
  EXPECT_LE(Spec::alive(), specs + 3 * 64);
  clear_cache(*world);
  EXPECT_EQ(cache_counters(*world).entries, 0U);
  EXPECT_LE(Spec::alive(), specs);
}

TEST(Tensor, RefusalsOfFunctionsAndOpsAreCaughtAsOne) {
  const auto world = World::connect(Rendezvous{});
  const Layout cut = Layout::parse("S(0)", Mesh::parse("[a=1]"));
  const Tensor x = ones({4, 3}, cut, *world);
  const auto caught = [](Failure::Kind kind, const std::string& text, const auto& call) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), kind);
      EXPECT_NE(std::string(failure.text()).find(text), std::string::npos) << failure.text();
    }
  };
  caught(Failure::Kind::value, "[layout_of]", [] { layout_of(at::ones({2})); });
  caught(Failure::Kind::value, "aten::mm", [&] { x.mm(x); });
  caught(Failure::Kind::unsupported, "[all_gather]",
         [&] { all_gather(world->everyone(), at::ones({2}).to_sparse(), 0); });
  world->close();
  caught(Failure::Kind::world, "[World::along]", [&] { (void)world->everyone(); });
}

TEST(Cache, IsClearedWhileInUse) {
  const auto world = World::connect(Rendezvous{});
  const Mesh mesh = Mesh::parse("[a=1]");
  const Tensor x = distribute(at::ones({4, 3}), Layout::parse("S(0)", mesh), *world);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) ASSERT_TRUE(at::equal(local((x + 1) * 2), at::full({4, 3}, 4.0)));
    });
  }
  for (int i = 0; i < 300; ++i) {
    clear_cache(*world);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  stop = true;
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace intarsia
