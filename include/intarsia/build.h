// build: C++ modules whose parameters and buffers are distributed from birth.
//
//     const LayoutPatterns layouts{{"*.up.weight", "R,S(0)"}, {"*.down.weight", "R,S(1)"}};
//     auto net = build(*world, mesh, layouts, [] { return Net(); });
//
// A torch::nn module makes its tensors in its constructor, and nothing can replace them later. So
// while `make` runs, the tensors it makes are distributed ones without memory, and what initialises
// them is recorded. Then each is laid out by its name, and every rank makes its piece: the full
// tensor of a parameter never exists. Initial values are the same in every layout, for the same
// seed: call torch::manual_seed first, with the same number on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/world.h"

namespace intarsia {

/// Names of parameters and buffers, with `*` for any part of a name, and placements as text. The
/// first pattern that fits a name decides; a name that no pattern fits is replicated.
using LayoutPatterns = std::vector<std::pair<std::string, std::string>>;

/// Parameters or buffers of a module, by name.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What `named_parameters()` or `named_buffers()` of a module gives, in its order, after `begin`.
template <class Items>
NamedTensors named_tensors(const Items& items, NamedTensors begin = {}) {
  for (const auto& item : items) begin.emplace_back(item.key(), item.value());
  return begin;
}

/// The module that `make` made: itself, or what a std::shared_ptr or a holder such as
/// torch::nn::Linear points to.
template <class Made>
auto& module_of(Made& made) {
  if constexpr (requires { made.named_parameters(); }) {
    return made;
  } else {
    return *made;
  }
}

/// Its parameters and buffers.
template <class Made>
NamedTensors tensors_of(Made& made) {
  auto& module = module_of(made);
  return named_tensors(module.named_buffers(), named_tensors(module.named_parameters()));
}

/// The scope in which tensors are born distributed. `build` is the convenient form.
///
/// A tensor that is read before the end of the scope, other than by ops that only initialise a
/// tensor (fill_, zero_, uniform_, normal_ and their like, mul_ and add_ by a number), is made at
/// once, and replicated. THREADS: belongs to the thread that made it; scopes do not nest.
class BuildScope {
 public:
  BuildScope(World& world, const Mesh& mesh);
  ~BuildScope();
  BuildScope(const BuildScope&) = delete;
  BuildScope& operator=(const BuildScope&) = delete;

  /// Ends the scope, lays the named tensors out, and makes them. ValueError for a tensor that was
  /// not made in this scope, for those whose values nothing sets, and for a pattern that fits no
  /// name.
  void finish(const NamedTensors& tensors, const LayoutPatterns& patterns);

 private:
  void leave();
  World& world_;
  Mesh mesh_;
  bool active_ = true;
};

/// Makes a module (itself, a std::shared_ptr to one, or a holder such as torch::nn::Linear) in a
/// scope.
template <class Make>
auto build(World& world, const Mesh& mesh, const LayoutPatterns& patterns, Make&& make) {
  BuildScope scope(world, mesh);
  auto module = make();
  scope.finish(tensors_of(module), patterns);
  return module;
}

}  // namespace intarsia
