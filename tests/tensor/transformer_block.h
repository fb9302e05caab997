// A transformer block, plain and in two parallel layouts, with what it must cost.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "intarsia/communication.h"
#include "tensor/tensors.h"

namespace intarsia::testing {

enum class BlockKind { plain, tensor_parallel, sequence_parallel };

/// Pre-norm attention and MLP, without biases in the linear layers.
struct Block {
  std::map<std::string, at::Tensor> p;
  std::int64_t head_dim = 4;
  /// Before a column-parallel and after a row-parallel layer.
  std::function<at::Tensor(const at::Tensor&)> enter = [](const at::Tensor& t) { return t; };
  std::function<at::Tensor(const at::Tensor&)> leave = [](const at::Tensor& t) { return t; };

  static Block make(std::int64_t dim, at::ScalarType dtype = at::kDouble) {
    Block b;
    std::uint64_t seed = 50;
    for (const char* name : {"q", "k", "v", "o"})
      b.p[name] = values({dim, dim}, seed++, dtype) * 0.3;
    b.p["up"] = values({4 * dim, dim}, seed++, dtype) * 0.3;
    b.p["down"] = values({dim, 4 * dim}, seed++, dtype) * 0.3;
    for (const char* name : {"n1", "n2"}) {
      b.p[std::string(name) + "w"] = values({dim}, seed++, dtype);
      b.p[std::string(name) + "b"] = values({dim}, seed++, dtype);
    }
    return b;
  }

  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return at::layer_norm(x, {x.size(2)}, p.at(name + "w"), p.at(name + "b"));
  }

  at::Tensor forward(const at::Tensor& input) const {
    const auto b = input.size(0);
    const auto s = input.size(1);
    const auto heads = [&](const at::Tensor& t) {
      return t.view({b, s, -1, head_dim}).transpose(1, 2);
    };
    at::Tensor h = enter(norm(input, "n1"));
    const at::Tensor q = heads(at::linear(h, p.at("q")));
    const at::Tensor k = heads(at::linear(h, p.at("k")));
    const at::Tensor v = heads(at::linear(h, p.at("v")));
    const at::Tensor a = at::scaled_dot_product_attention(q, k, v, {}, 0, true);
    at::Tensor x = input + leave(at::linear(a.transpose(1, 2).reshape({b, s, -1}), p.at("o")));
    h = enter(norm(x, "n2"));
    return x + leave(at::linear(at::gelu(at::linear(h, p.at("up"))), p.at("down")));
  }
};

/// Compares with the plain block, and holds the collectives to the textbook's: for each of the two
/// halves, one all-reduce forward and one backward; with sequence parallelism a gather and a
/// reduce-scatter each, and the gradients of the norms.
inline void check_block(BlockKind kind) {
  const Mesh mesh = Mesh::parse("[tp=2]");
  on_mesh(mesh, [&](World& world) {
    const bool sequence = kind == BlockKind::sequence_parallel;
    const Layout whole = Layout::parse("R", mesh);
    const Layout along = Layout::parse(sequence ? "S(1)" : "R", mesh);
    Block plain = Block::make(16);
    Block ours = plain;
    for (auto& [name, t] : plain.p) t.set_requires_grad(true);
    for (auto& [name, t] : ours.p) {
      const bool row = name == "o" || name == "down";
      const bool is_norm = name[0] == 'n';
      t = distribute(t.detach(),
                     Layout::parse(is_norm ? "R"
                                   : row   ? "S(1)"
                                           : "S(0)",
                                   mesh),
                     world)
              .set_requires_grad(true);
    }
    if (sequence) {
      ours.enter = [&](const at::Tensor& t) { return redistribute(t, whole); };
      ours.leave = [&](const at::Tensor& t) { return redistribute(t, along); };
    }
    at::Tensor px = values({2, 6, 16}, 1).set_requires_grad(true);
    at::Tensor x = distribute(values({2, 6, 16}, 1), along, world).set_requires_grad(true);
    const at::Tensor want = plain.forward(px);
    Budget forward(world);
    at::Tensor got = ours.forward(x);
    // The last sum leaves terms; the next block would reduce them.
    if (!sequence) got = redistribute(got, whole);
    forward.expect(sequence ? "2 P->S, 2 S->R" : "2 P->R");
    expect_whole(got, want, "forward", 1e-9);
    const at::Tensor weight = values({2, 6, 16}, 2);
    (want * weight).sum().backward();
    const at::Tensor loss = (got * distribute(weight, along, world)).sum();
    Budget backward(world);
    loss.backward();
    backward.expect(sequence ? "4 P->R, 2 P->S, 2 S->R" : "2 P->R");
    for (const auto& [name, t] : plain.p)
      expect_whole(ours.p.at(name).grad(), t.grad(), name, 1e-8);
    expect_whole(x.grad(), px.grad(), "x", 1e-8);
  });
}

}  // namespace intarsia::testing
