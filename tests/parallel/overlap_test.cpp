// Linear layers in chunks: equal to the whole, in values, gradients and what is sent.
#include "intarsia/overlap.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "error_text.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/fully_shard.h"
#include "intarsia/tensor.h"
#include "intarsia/tensor_parallel.h"
#include "intarsia/topology.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using at::Tensor;
using testing::expect_error;
using testing::expect_whole;
using testing::on_mesh;
using testing::values;

constexpr std::int64_t kIn = 6;
constexpr std::int64_t kLength = 24;

/// How one test lies on a mesh whose last axis is tp.
struct Case {
  const char* mesh;
  const char* x;
  const char* weight;
  const char* bias;
  std::int64_t chunks;
};

Tensor leaf(const Tensor& full, const char* layout, const Mesh& mesh, World& world) {
  return distribute(full, Layout::parse(layout, mesh), world).detach().set_requires_grad(true);
}

Tensor plain_leaf(const Tensor& full) { return full.clone().set_requires_grad(true); }

/// A loss whose gradient differs from element to element.
Tensor weighed(const Tensor& y, std::uint64_t seed) {
  return (y * values(y.sizes().vec(), seed)).sum();
}

std::string times(std::int64_t n, const std::string& what) {
  return std::to_string(n) + ' ' + what;
}

TEST(Overlap, GatheredLinearsEqualTheWhole) {
  for (const Case& c : {
           Case{"[tp=2]", "S(1)", "S(0)", "S(0)", 1},
           Case{"[tp=2]", "S(1)", "S(0)", "S(0)", 2},
           Case{"[tp=2]", "S(1)", "S(0)", "R", 4},
           Case{"[tp=3]", "S(1)", "S(0)", "S(0)", 4},
           Case{"[tp=4]", "S(1)", "R", "R", 2},
           Case{"[tp=4]", "S(1)", "S(1)", "R", 3},
           Case{"[tp=2]", "S(0)", "S(0)", "S(0)", 2},
           Case{"[dp=2,tp=2]", "S(0),S(1)", "R,S(0)", "R,S(0)", 2},
           Case{"[dp=2,tp=2]", "R,S(1)", "R,S(0)", "R,S(0)", 3},
       }) {
    SCOPED_TRACE(::testing::Message()
                 << c.mesh << ' ' << c.x << ' ' << c.weight << ' ' << c.chunks);
    const Mesh mesh = Mesh::parse(c.mesh);
    on_mesh(mesh, [&](World& world) {
      const Tensor x = leaf(values({4, kLength, kIn}, 1), c.x, mesh, world);
      const Tensor a = leaf(values({12, kIn}, 2), c.weight, mesh, world);
      const Tensor b = leaf(values({24, kIn}, 3), c.weight, mesh, world);
      const Tensor bias = leaf(values({24}, 4), c.bias, mesh, world);
      const Tensor plain_x = plain_leaf(values({4, kLength, kIn}, 1));
      const Tensor plain_a = plain_leaf(values({12, kIn}, 2));
      const Tensor plain_b = plain_leaf(values({24, kIn}, 3));
      const Tensor plain_bias = plain_leaf(values({24}, 4));

      const auto made = gathered_linears(x, {{a}, {b, bias}}, "tp", {.chunks = c.chunks});
      const Tensor plain_made_a = at::linear(plain_x, plain_a);
      const Tensor plain_made_b = at::linear(plain_x, plain_b, plain_bias);
      expect_whole(made[0].detach(), plain_made_a.detach(), "a");
      expect_whole(made[1].detach(), plain_made_b.detach(), "b");

      (weighed(made[0], 5) + weighed(made[1], 6)).backward();
      (weighed(plain_made_a, 5) + weighed(plain_made_b, 6)).backward();
      EXPECT_EQ(layout_of(x.grad()), layout_of(x));
      expect_whole(x.grad(), plain_x.grad(), "x's gradient");
      expect_whole(a.grad(), plain_a.grad(), "a's gradient");
      expect_whole(b.grad(), plain_b.grad(), "b's gradient");
      expect_whole(bias.grad(), plain_bias.grad(), "the bias's gradient");
    });
  }
}

TEST(Overlap, ScatteredLinearEqualsTheWhole) {
  for (const Case& c : {
           Case{"[tp=2]", "S(2)", "S(1)", "R", 1},
           Case{"[tp=2]", "S(2)", "S(1)", "R", 2},
           Case{"[tp=3]", "S(2)", "S(1)", "R", 4},
           Case{"[tp=4]", "S(2)", "S(1)", "R", 3},
           Case{"[tp=2]", "R", "R", "R", 2},
           Case{"[dp=2,tp=2]", "S(0),S(2)", "R,S(1)", "R,R", 2},
           Case{"[dp=2,tp=2]", "S(2),S(2)", "S(1),S(1)", "R,R", 2},
       }) {
    SCOPED_TRACE(::testing::Message()
                 << c.mesh << ' ' << c.x << ' ' << c.weight << ' ' << c.chunks);
    const Mesh mesh = Mesh::parse(c.mesh);
    on_mesh(mesh, [&](World& world) {
      const Tensor x = leaf(values({4, kLength, kIn}, 1), c.x, mesh, world);
      const Tensor weight = leaf(values({5, kIn}, 2), c.weight, mesh, world);
      const Tensor bias = leaf(values({5}, 3), c.bias, mesh, world);
      const Tensor plain_x = plain_leaf(values({4, kLength, kIn}, 1));
      const Tensor plain_weight = plain_leaf(values({5, kIn}, 2));
      const Tensor plain_bias = plain_leaf(values({5}, 3));

      const Tensor y = scattered_linear(x, {weight, bias}, "tp", 1, {.chunks = c.chunks});
      const Tensor plain_y = at::linear(plain_x, plain_weight, plain_bias);
      EXPECT_EQ(layout_of(y).placement("tp"), Placement::shard(1));
      expect_whole(y.detach(), plain_y.detach(), "y");

      weighed(y, 4).backward();
      weighed(plain_y, 4).backward();
      expect_whole(x.grad(), plain_x.grad(), "x's gradient");
      expect_whole(weight.grad(), plain_weight.grad(), "the weight's gradient");
      expect_whole(bias.grad(), plain_bias.grad(), "the bias's gradient");
    });
  }
}

TEST(Overlap, SendsWhatTheWholeSends) {
  const Mesh mesh = Mesh::parse("[tp=2]");
  on_mesh(mesh, [&](World& world) {
    for (const std::int64_t chunks : {1, 2, 4}) {
      const Tensor x = leaf(values({4, kLength, kIn}, 1), "S(1)", mesh, world);
      const Tensor up = leaf(values({8, kIn}, 2), "S(0)", mesh, world);
      const Tensor down = leaf(values({kIn, 8}, 3), "S(1)", mesh, world);
      const Budget forward(world);
      const Tensor y =
          scattered_linear(gathered_linears(x, {{up}}, "tp", {.chunks = chunks})[0].relu(), {down},
                           "tp", 1, {.chunks = chunks});
      forward.expect(times(chunks, "P->S, ") + times(chunks, "S->R"));
      const Budget backward(world);
      if (chunks < 4) {
        y.pow(2).sum().backward();
        backward.expect(times(chunks, "P->S, ") + times(chunks, "S->R"));
      } else {
        y.sum().backward();  // a gradient that is whole already is not sent
        backward.expect(times(chunks, "P->S"));
      }
    }
  });
}

TEST(Overlap, GoesAsAWholeWhereChunksDoNotFit) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor full = values({4, 6, kIn}, 1);
    const Tensor w = values({8, kIn}, 2);
    const Tensor weight = distribute(w, Layout::parse("R,S(0)", mesh), world);
    for (const char* layout : {"R,S(1)", "S(1),S(1)", "R,S(2)", "R,R", "R,S(0)"}) {
      const Tensor x = distribute(full, Layout::parse(layout, mesh), world);
      const auto made = gathered_linears(x, {{weight}}, "tp", {.chunks = 4});
      expect_whole(made[0], at::linear(full, w), layout);
    }
    EXPECT_TRUE(gathered_linears(full, {{w}}, "tp")[0].equal(at::linear(full, w)));
    EXPECT_TRUE(scattered_linear(full, {w}, "tp", 1).equal(at::linear(full, w)));
    const Tensor row = distribute(w, Layout::parse("R,S(1)", mesh), world);
    const Tensor x = distribute(full, Layout::parse("R,S(2)", mesh), world);
    expect_whole(scattered_linear(x, {row}, "tp", 1, {.chunks = 4}), at::linear(full, w), "rows");
  });
}

TEST(Overlap, ResultsThatNobodyUsesHaveNoPartInGradients) {
  const Mesh mesh = Mesh::parse("[tp=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor x = leaf(values({4, kLength, kIn}, 1), "S(1)", mesh, world);
    const Tensor a = leaf(values({8, kIn}, 2), "S(0)", mesh, world);
    const Tensor b = leaf(values({8, kIn}, 3), "S(0)", mesh, world);
    const auto made = gathered_linears(x, {{a}, {b}}, "tp", {.chunks = 2});
    weighed(made[1], 4).backward();
    const Tensor plain_x = plain_leaf(values({4, kLength, kIn}, 1));
    weighed(at::linear(plain_x, values({8, kIn}, 3)), 4).backward();
    expect_whole(x.grad(), plain_x.grad(), "x's gradient");
    EXPECT_FALSE(a.grad().defined());
  });
}

TEST(Overlap, RefusesWhatItCannotDo) {
  const Mesh mesh = Mesh::parse("[tp=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor x = leaf(values({4, kLength, kIn}, 1), "S(1)", mesh, world);
    const Tensor w = leaf(values({8, kIn}, 2), "S(0)", mesh, world);
    const auto gradient = [&](std::int64_t chunks) {
      const auto made = gathered_linears(x, {{w}}, "tp", {.chunks = chunks});
      return torch::autograd::grad({made[0].pow(2).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    };
    EXPECT_TRUE(gradient(1).requires_grad());
    expect_error<UnsupportedError>([&] { gradient(2); }, {"create_graph", "use chunks = 1"});
    expect_error<ValueError>([&] { gradient(-1); }, {"there are no -1 chunks"});
  });
}

TEST(Overlap, CastsAsAutocastDoes) {
  const Mesh mesh = Mesh::parse("[tp=2]");
  on_mesh(mesh, [&](World& world) {
    const auto run = [&](std::int64_t chunks) {
      const Tensor x = leaf(values({4, kLength, kIn}, 1).to(at::kFloat), "S(1)", mesh, world);
      const Tensor w = leaf(values({8, kIn}, 2).to(at::kFloat), "S(0)", mesh, world);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const Tensor y = gathered_linears(x, {{w}}, "tp", {.chunks = chunks})[0];
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      y.to(at::kFloat).sum().backward();
      EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
      return std::pair(full(y.detach()), full(w.grad()));
    };
    const auto [whole, whole_gradient] = run(1);
    const auto [chunked, chunked_gradient] = run(2);
    EXPECT_TRUE(chunked.equal(whole));
    EXPECT_TRUE(chunked_gradient.equal(whole_gradient));
  });
}

TEST(Overlap, WeightsMayBeStoredInPieces) {
  const Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  on_mesh(mesh, [&](World& world) {
    const Tensor up = leaf(values({8, kIn}, 2), "R,S(0)", mesh, world);
    const Tensor down = leaf(values({kIn, 8}, 3), "R,S(1)", mesh, world);
    const auto sharding =
        fully_shard(std::vector<ParameterGroup>{{"up", {{"up", up}}}, {"down", {{"down", down}}}},
                    {.shard = {"dp"}});
    const Tensor plain_up = plain_leaf(values({8, kIn}, 2));
    const Tensor plain_down = plain_leaf(values({kIn, 8}, 3));
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Tensor full_x = values({4, kLength, kIn}, 10 + step);
      const Tensor x = distribute(full_x, Layout::parse("S(0),S(1)", mesh), world);
      const auto made = gathered_linears(x, {{up}}, "tp", {.chunks = 2});
      scattered_linear(made[0].tanh(), {down}, "tp", 1, {.chunks = 3}).pow(2).sum().backward();
      at::linear(at::linear(full_x, plain_up).tanh(), plain_down).pow(2).sum().backward();
      expect_whole(up.grad(), plain_up.grad(), "up's gradient");
      expect_whole(down.grad(), plain_down.grad(), "down's gradient");
      for (const Tensor& t : {up, down, plain_up, plain_down}) t.mutable_grad().reset();
    }
  });
}

/// How many chunks are chosen, told by the bill.
std::string chosen(World& world, const Mesh& mesh, double flops, double bandwidth) {
  Topology topology = Topology::standard();
  topology.flops = flops;
  topology.copy_bandwidth = std::numeric_limits<double>::infinity();
  topology.levels[0].link = {.latency = 0, .overhead = 1e-5, .bandwidth = bandwidth};
  world.set_topology(topology);
  const Tensor x = distribute(values({1, 4096, 64}, 1), Layout::parse("S(1)", mesh), world);
  const Tensor w = distribute(values({256, 64}, 2), Layout::parse("S(0)", mesh), world);
  const Budget budget(world);
  gathered_linears(x, {{w}}, "tp");
  return budget.spent();
}

TEST(Overlap, TheTopologySaysHowManyChunks) {
  EXPECT_EQ(overlapped_seconds(1, 3, 5), 8);
  EXPECT_EQ(overlapped_seconds(4, 3, 5), 23);
  const Mesh mesh = Mesh::parse("[tp=2]");
  // 1 MiB is sent in 1 ms, and 2 * 4096 * 64 * 128 operations take as long: with k chunks, each of
  // which takes 10 us to start, that is 1 ms + k * 10 us + 1 ms / k, of powers of two the least at
  // 8.
  const double bandwidth = 1e9;
  const double flops = 6.4e10;
  on_mesh(mesh, [&](World& world) {
    EXPECT_EQ(chosen(world, mesh, flops, bandwidth), "8 S->R");
    EXPECT_EQ(chosen(world, mesh, flops * 1e4, bandwidth), "1 S->R") << "nothing to hide behind";
    EXPECT_EQ(chosen(world, mesh, flops, bandwidth * 1e4), "1 S->R") << "nothing to hide";
  });
}

}  // namespace
}  // namespace intarsia
