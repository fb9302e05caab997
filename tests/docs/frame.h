// What surrounds the examples of header comments: see snippets.py.
#pragma once

#include <torch/torch.h>

#include <intarsia/intarsia.h>

#include <memory>
#include <string>
#include <utility>

namespace intarsia {

/// A plain module of two linear layers, whose names are those of many blocks: `block.up`,
/// `block.down`.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    up = register_module("up", torch::nn::Linear(8, 16));
    down = register_module("down", torch::nn::Linear(16, 8));
  }
  torch::nn::Linear up = nullptr;
  torch::nn::Linear down = nullptr;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(TensorParallelPlan plan = {}) : plan(std::move(plan)) {
    block = register_module("block", Block());
  }
  at::Tensor forward(const at::Tensor& given) {
    const at::Tensor x = placed_input(given, plan, "up");
    return placed_output(block->down(block->up(x).tanh()), plan, "down");
  }
  TensorParallelPlan plan;
  Block block = nullptr;
};
TORCH_MODULE(Net);

/// What examples in header comments may use besides what they make: they are members of it. All
/// ranks are in this process.
struct Frame {
  std::shared_ptr<World> world = lockstep_world(4);
  Mesh mesh = Mesh::parse("[dp=2,tp=2]");
  /// A batch of 4 sequences of length 6; with sequence parallelism, in parts.
  at::Tensor batch = distribute(at::ones({4, 6, 8}), Layout::parse("S(0),R", mesh), *world);
  at::Tensor x = distribute(at::ones({4, 6, 8}), Layout::parse("S(0),S(1)", mesh), *world);
  at::Tensor mixed = distribute(at::ones({4, 6, 8}), Layout::parse("S(0),S(2)", mesh), *world);
  torch::nn::Linear wq = linear("R,S(0)");
  torch::nn::Linear wk = linear("R,S(0)");
  torch::nn::Linear wv = linear("R,S(0)");
  torch::nn::Linear wo = linear("R,S(1)");

  torch::nn::Linear linear(const std::string& layout) const {
    return build(*world, mesh, LayoutPatterns{{"weight", layout}},
                 [] { return torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)); });
  }
  void train_step() { wq(batch).square().mean().backward(); }
};

/// An op that a user might have registered.
inline at::Tensor scaled_mm(const at::Tensor& a, const at::Tensor& b, double scale) {
  return a.mm(b) * scale;
}

TORCH_LIBRARY(mylib, m) {
  m.def("scaled_mm(Tensor a, Tensor b, float scale=1.0) -> Tensor", &scaled_mm);
}

}  // namespace intarsia
