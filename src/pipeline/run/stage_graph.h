// The backward of a stage for one microbatch: at once, or in two halves.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace intarsia::pipeline {

using Tensors = std::vector<at::Tensor>;

/// What a forward left for its backward.
///
/// The halves are `input_gradients`, which the stage before waits for, and `weight_gradients`,
/// later. A node of the graph that both need, such as a product, gives each half only what that
/// half asks for, so the two take as long as one backward. A parameter that is used several times
/// gets one gradient, and its hooks run once, however often the stage uses it. Hooks on activations
/// that are beside parameters in a product run in both halves.
///
/// Example: y = (x w1 + b) w2. The first half goes from y to x, and keeps the gradient that arrives
/// at each product. Then the graph is taken apart between the products: the second half begins at
/// each of them, and ends at the parameters.
class StageGraph {
 public:
  StageGraph() = default;
  /// `inputs` are leaves, of which those that require gradients get them; `outputs` were made of
  /// them. Undefined ones, and those without a gradient, are left out.
  StageGraph(Tensors inputs, const Tensors& outputs);

  /// Gives the inputs their gradients, and adds to those of the parameters. `gradients`: of the
  /// outputs; an undefined one counts as zeros. Undefined for an input that nothing depends on.
  Tensors backward(const Tensors& gradients);

  /// The first half: as above, without parameters. What only this half needs is given up.
  Tensors input_gradients(const Tensors& gradients);
  /// The second half. REQUIRES: the first was called.
  void weight_gradients();

 private:
  struct Start {
    torch::autograd::Edge edge;
    at::Tensor gradient;
  };
  /// Where a backward with these gradients begins.
  std::vector<Start> starts(const Tensors& gradients) const;
  Tensors taken_gradients() const;

  Tensors inputs_;
  torch::autograd::edge_list outputs_;  // invalid where no gradient goes
  std::vector<Start> weights_;          // where the second half begins
};

}  // namespace intarsia::pipeline
