// Gradients of distributed tensors: their layouts, and what they cost.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <thread>

#include "error_text.h"
#include "intarsia/communication.h"
#include "tensor/tensors.h"
#include "tensor/transformer_block.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::expect_whole;
using testing::on_mesh;
using testing::some_layouts;
using testing::values;

const Mesh& square() {
  static const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  return mesh;
}

TEST(Autograd, RedistributeBringsGradientsBack) {
  on_mesh(square(), [&](World& world) {
    for (const std::string& from : some_layouts()) {
      for (const std::string& to : some_layouts()) {
        const bool kinds_differ = from.find("avg") != to.find("avg") &&
                                  from.find('P') != std::string::npos &&
                                  to.find('P') != std::string::npos;
        if (kinds_differ) continue;
        const std::string what = from + " to " + to;
        Tensor plain = values({6, 5}, 1).set_requires_grad(true);
        Tensor ours = distribute(values({6, 5}, 1), Layout::parse(from, square()), world)
                          .set_requires_grad(true);
        const Tensor moved = redistribute(ours, Layout::parse(to, square()));
        (plain * plain * values({6, 5}, 2)).sum().backward();
        (moved * moved * values({6, 5}, 2)).sum().backward();
        expect_whole(moved, plain, what);
        expect_whole(ours.grad(), plain.grad(), what);
        // The gradient of a partial leaf is whole; any other lies like the leaf.
        const Layout leaf = Layout::parse(from, square());
        if (!leaf.has_partial()) {
          EXPECT_EQ(layout_of(ours.grad()).to_string(), leaf.to_string()) << what;
        } else {
          EXPECT_FALSE(layout_of(ours.grad()).has_partial()) << what;
        }
      }
    }
  });
}

TEST(Autograd, DoubleBackward) {
  on_mesh(square(), [&](World& world) {
    for (const char* text : {"S(0),R", "S(0),S(1)", "R,R"}) {
      const Layout layout = Layout::parse(text, square());
      Tensor plain = values({6, 5}, 1).set_requires_grad(true);
      Tensor ours = distribute(values({6, 5}, 1), layout, world).set_requires_grad(true);
      const auto twice = [&](const Tensor& x, const Tensor& y) {
        const Tensor g = torch::autograd::grad({(y * y * y).sum()}, {x}, {}, true, true)[0];
        return torch::autograd::grad({(g * g).sum()}, {x})[0];
      };
      const Tensor moved = redistribute(ours, Layout::parse("R,S(0)", square()));
      expect_whole(twice(ours, moved), twice(plain, plain * 1), text, 1e-8);
    }
  });
}

TEST(Autograd, AccumulatesOverSeveralBackwards) {
  on_mesh(square(), [&](World& world) {
    Tensor plain = values({5, 3}, 1).set_requires_grad(true);
    Tensor ours = distribute(values({5, 3}, 1), Layout::parse("R,S(0)", square()), world)
                      .set_requires_grad(true);
    for (std::uint64_t i = 0; i < 3; ++i) {
      const Tensor x = values({4, 5}, 10 + i);
      x.mm(plain).pow(2).sum().backward();
      Budget budget(world);
      const Tensor batch = distribute(x, Layout::parse("S(0),R", square()), world);
      batch.mm(ours).pow(2).sum().backward();
      // Forward: the product's terms over tp. Backward: one reduction of the gradient over dp.
      budget.expect("2 P->R");
      EXPECT_EQ(layout_of(ours.grad()).placements_text(), "R,S(0)");
    }
    expect_whole(ours.grad(), plain.grad(), "grad");
  });
}

TEST(Autograd, UnusedAndUndefinedGradients) {
  on_mesh(square(), [&](World& world) {
    const Layout layout = Layout::parse("S(0),R", square());
    Tensor a = distribute(values({4, 3}, 1), layout, world).set_requires_grad(true);
    Tensor b = distribute(values({4, 3}, 2), layout, world).set_requires_grad(true);
    const Tensor whole = Tensor(redistribute(a, Layout::replicated(square())));
    const auto [top, where] = a.topk(2, 1);
    top.sum().backward();
    EXPECT_TRUE(a.grad().defined());
    EXPECT_FALSE(b.grad().defined());
    const auto grads = torch::autograd::grad({(a * 2).sum()}, {a, b}, {}, {}, false, true);
    EXPECT_TRUE(grads[0].defined());
    EXPECT_FALSE(grads[1].defined());
    (void)where;
    (void)whole;
  });
}

TEST(Autograd, BackwardFromAnotherThread) {
  on_mesh(square(), [&](World& world) {
    Tensor plain = values({6, 5}, 1).set_requires_grad(true);
    Tensor ours = distribute(values({6, 5}, 1), Layout::parse("R,S(0)", square()), world)
                      .set_requires_grad(true);
    const Tensor x = values({8, 6}, 2);
    x.mm(plain).relu().sum().backward();
    const Tensor loss =
        distribute(x, Layout::parse("S(0),R", square()), world).mm(ours).relu().sum();
    std::exception_ptr error;
    std::thread([&] {
      try {
        loss.backward();
      } catch (...) {
        error = std::current_exception();
      }
    }).join();
    if (error) std::rethrow_exception(error);
    expect_whole(ours.grad(), plain.grad(), "grad");
  });
}

TEST(Autograd, LocalAndFromLocalSayTheLayoutOfGradients) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const auto rank = world.rank();
    Tensor shard =
        distribute(values({5, 2}, 1), Layout::parse("S(0)", mesh), world).set_requires_grad(true);
    (local(shard) * static_cast<double>(rank + 1)).sum().backward();
    const Tensor want =
        at::cat({at::ones({3, 2}, at::kDouble), at::full({2, 2}, 2.0, at::kDouble)});
    expect_whole(shard.grad(), want, "of a shard");

    Tensor copy =
        distribute(values({2, 2}, 1), Layout::parse("R", mesh), world).set_requires_grad(true);
    expect_error<ValueError>([&] { local(copy); },
                             {"[local]", "requires a gradient and is R on axis a", "grad_layout"});
    (local(copy, Layout::parse("P(sum)", mesh)) * static_cast<double>(rank + 1)).sum().backward();
    expect_whole(copy.grad(), at::full({2, 2}, 3.0, at::kDouble), "each rank a part");
    copy.mutable_grad() = Tensor();
    (local(copy, Layout::parse("R", mesh)) * 2).sum().backward();
    expect_whole(copy.grad(), at::full({2, 2}, 2.0, at::kDouble), "every rank the same");

    Tensor piece = values({3 - rank, 2}, 5).set_requires_grad(true);
    const Tensor joined =
        from_local(piece, Layout::parse("S(0)", mesh), world, {.shape = {{5, 2}}});
    (joined * joined).sum().backward();
    EXPECT_TRUE(at::allclose(piece.grad(), 2 * piece));
    expect_error<ValueError>(
        [&] {
          from_local(values({2, 2}, 1), Layout::parse("S(0)", mesh), world, {.shape = {{7, 2}}});
        },
        {"[from_local]", "(2,2)", "(7,2)", "shape"});

    Tensor term = values({2, 2}, 6).set_requires_grad(true);
    (from_local(term, Layout::parse("P(sum)", mesh), world) * 3).sum().backward();
    EXPECT_TRUE(at::allclose(term.grad(), at::full({2, 2}, 3.0, at::kDouble)));

    Tensor all =
        distribute(values({5, 2}, 1), Layout::parse("S(0)", mesh), world).set_requires_grad(true);
    (full(all) * values({5, 2}, 7)).sum().backward();
    expect_whole(all.grad(), values({5, 2}, 7), "of full");
  });
}

TEST(Autograd, ALeafHasOneHook) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    Tensor w = distribute(values({4, 2}, 1), Layout::parse("S(0)", mesh), world);
    w.set_requires_grad(true);
    for (int i = 0; i < 5; ++i) {
      (w * 2).sum();
      redistribute(w, Layout::parse("R", mesh));
      local(w);
      full(w);
      const at::NoGradGuard no_grad;
      w.t() * 2;
    }
    EXPECT_EQ(torch::autograd::impl::hooks(w).size(), 1U);
  });
}

TEST(Autograd, LocalRegion) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    Tensor x =
        distribute(values({5, 4}, 1), Layout::parse("S(1)", mesh), world).set_requires_grad(true);
    Tensor w =
        distribute(values({4, 3}, 2), Layout::parse("R", mesh), world).set_requires_grad(true);
    const Layout rows = Layout::parse("S(0)", mesh);
    const auto out = local_region(
        [](const std::vector<Tensor>& t) { return std::vector<Tensor>{t[0].mm(t[1]).tanh()}; },
        {x, w},
        {.in = {rows, Layout::parse("R", mesh)},
         .out = {rows},
         .grads = {std::nullopt, Layout::parse("P(sum)", mesh)},
         .shapes = {{{5, 3}}}});
    Tensor px = values({5, 4}, 1).set_requires_grad(true);
    Tensor pw = values({4, 3}, 2).set_requires_grad(true);
    const Tensor want = px.mm(pw).tanh();
    expect_whole(out[0], want, "out");
    (want * want).sum().backward();
    (out[0] * out[0]).sum().backward();
    expect_whole(x.grad(), px.grad(), "x");
    expect_whole(w.grad(), pw.grad(), "w");
    EXPECT_EQ(layout_of(x.grad()).placements_text(), "S(1)");
  });
}

TEST(Autograd, APartialValueIsReducedOnce) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    Tensor x = distribute(values({4, 8}, 1), Layout::parse("S(1)", mesh), world);
    Tensor w =
        distribute(values({8, 4}, 2), Layout::parse("S(0)", mesh), world).set_requires_grad(true);
    Budget budget(world);
    const Tensor y = x.mm(w);
    EXPECT_EQ(layout_of(y).placements_text(), "P(sum)");
    const Tensor z = (y.pow(2) + y.sin()).sum();
    budget.expect("1 P->R");
    z.backward();
    budget.expect("1 P->R");
    EXPECT_EQ(layout_of(y).placements_text(), "P(sum)");
    // A write ends what is remembered.
    Tensor u = x.mm(w.detach());
    const Tensor before = full(u.sin());
    u.mul_(2);
    expect_whole(u.sin(), full(u).sin(), "after a write");
    u.view({-1}).mul_(2);
    expect_whole(u.sin(), full(u).sin(), "after a write to a view");
    u.variable_data().mul_(2);
    expect_whole(u.sin(), full(u).sin(), "after a write to a detached copy");
    local(u).mul_(2);
    expect_whole(u.sin(), full(u).sin(), "after a write to the piece");
  });
}

TEST(Autograd, ShardsAreGatheredOnceForSeveralUses) {
  const Mesh mesh = Mesh::parse("[a=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor x = distribute(values({4, 8}, 1), Layout::parse("S(0)", mesh), world);
    Budget budget(world);
    std::vector<Tensor> out;
    for (int i = 0; i < 3; ++i) out.push_back(at::linalg_svdvals(x));
    budget.expect("1 S->R");
  });
}

TEST(Autograd, TensorParallelBlockHasTheTextbookCollectives) {
  testing::check_block(testing::BlockKind::tensor_parallel);
}

TEST(Autograd, SequenceParallelBlockHasTheTextbookCollectives) {
  testing::check_block(testing::BlockKind::sequence_parallel);
}

}  // namespace
}  // namespace intarsia
