// Tensor parallelism: which modules of a model are sharded along a mesh axis, by their names.
//
//     const TensorParallelPlan plan{"tp", {{"*.up", column()}, {"*.down", row()}}};
//     auto net = build(*world, mesh, plan, [&] { return Net(plan); });
//
// In this library tensor parallelism is nothing but layouts. A plan names modules by patterns. For
// each it says the placements along its axis of the parameters, and of the tensors that enter and
// leave the module. A plan is a value: it expands to layouts for `build`, and model code asks it to
// place what flows between modules, since torch::nn has no hooks:
//
//     x = placed_input(x, plan, "attention");
//     const auto out = placed_output(wo(mixed), plan, "wo");
//
// or, where a module begins and ends with linear layers, so that communication overlaps with them:
//
//     const auto qk = placed_linears(x, plan, "attention", {{wq->weight}, {wk->weight}});
//     const auto out = placed_linear(mixed, plan, "wo", {wo->weight});
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "intarsia/build.h"
#include "intarsia/layout.h"
#include "intarsia/overlap.h"
#include "intarsia/placement.h"

namespace intarsia {

/// What a plan does to a module, along its axis; other axes are left as they are.
struct ModuleStyle {
  /// The module's own parameters and buffers by name, such as `weight`, with `*` for any part. The
  /// first that fits decides; what none fits is R. REQUIRES: dimensions count from the front.
  std::vector<std::pair<std::string, Placement>> parameters = {};
  /// The placements of the input and of the output. Unset: left as they are.
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
  /// How many heads the sharded dimension of `weight` holds: the size of the axis must divide their
  /// number. 0: unknown.
  std::int64_t heads = 0;
};

struct StyleOptions {
  std::optional<Placement> input = std::nullopt;
  std::optional<Placement> output = std::nullopt;
  std::int64_t heads = 0;
};

/// A linear module whose outputs are sharded: weight S(0), bias S(0). The output is sharded along
/// its last dimension; views of it then have sharded attention heads.
ModuleStyle column(const StyleOptions& options = {});
/// A linear module whose inputs are sharded: weight S(1), bias R. The output is partial.
ModuleStyle row(const StyleOptions& options = {});
/// An embedding whose vocabulary is sharded: weight S(0). The output is partial. The head that maps
/// to the vocabulary is `column()`: the loss of logits that are sharded so needs no gather.
ModuleStyle vocabulary(const StyleOptions& options = {});
/// A norm whose input is sharded along the sequence: parameters R, input S(dim).
ModuleStyle sequence(int dim = 1);
/// Only places the input, or the output.
ModuleStyle prepare_input(const Placement& placement);
ModuleStyle prepare_output(const Placement& placement);

struct PlannedModules {
  /// Names of modules, with `*` for any part of a name and `|` between alternatives:
  /// `*.wq|*.q_proj`.
  std::string pattern;
  ModuleStyle style;
  /// The pattern may fit no module, or modules without the parameters that it lays out. If false,
  /// that is an error.
  bool optional = false;
};

/// Which modules are sharded along an axis. Where several entries fit a module, each of its
/// parameters, its input and its output are decided by the first entry that says something about
/// them. A plan without entries does nothing.
struct TensorParallelPlan {
  std::string axis = "tp";
  std::vector<PlannedModules> modules = {};
  /// In how many chunks placed_linears and placed_linear gather and scatter. 1: in one go; 0: the
  /// number that takes least time by the world's topology.
  OverlapOptions overlap = {.chunks = 1};
};

/// A parameter or buffer as a plan sees it: its full name and sizes.
using NamedShape = std::pair<std::string, std::vector<std::int64_t>>;

/// The layouts that a plan gives to the parameters and buffers of a model: one for each that the
/// plan names, for `build` or Python's `parallelize`.
///
/// `modules`: the names of all modules, without the model itself. ValueError for an axis that the
/// mesh does not have; unless it is optional, for a pattern that fits no module (the message lists
/// near names), or no parameter where its style shards some; and for heads that the axis does not
/// divide.
LayoutPatterns layouts(const TensorParallelPlan& plan, const Mesh& mesh,
                       const std::vector<std::string>& modules,
                       const std::vector<NamedShape>& tensors);

/// A tensor with another placement along one axis of its mesh, by `redistribute`. Where it has that
/// placement already, only its gradient is placed so: the gradient of what stays R is summed there.
/// The tensor itself where it is plain, and where its mesh has no such axis.
/// COLLECTIVE: as `redistribute`.
at::Tensor placed(const at::Tensor& x, std::string_view axis, const Placement& placement);

/// The placement that a plan wants for the input, or the output, of a module; nullopt where it says
/// nothing. `module`: its full name, or the end of one, such as `attention` for the pattern
/// `layers.*.attention`.
std::optional<Placement> wanted_input(const TensorParallelPlan& plan, std::string_view module);
std::optional<Placement> wanted_output(const TensorParallelPlan& plan, std::string_view module);

/// `x` placed so; `x` itself where it is plain, and where the plan says nothing about the module.
/// COLLECTIVE: as `redistribute`.
at::Tensor placed_input(const at::Tensor& x, const TensorParallelPlan& plan,
                        std::string_view module);
at::Tensor placed_output(const at::Tensor& x, const TensorParallelPlan& plan,
                         std::string_view module);

/// Linear layers of the input of a module: each of `placed_input(x, plan, module)`. Where that
/// gathers, chunks of `x` travel while others are multiplied, as `plan.overlap` says: see
/// gathered_linears. COLLECTIVE: as `redistribute`.
std::vector<at::Tensor> placed_linears(const at::Tensor& x, const TensorParallelPlan& plan,
                                       std::string_view module,
                                       const std::vector<LinearParameters>& linears);
/// A linear layer and its output: `placed_output(linear(x), plan, module)`. Where that scatters
/// partial values, chunks travel while others are multiplied: see scattered_linear. COLLECTIVE: as
/// `redistribute`.
at::Tensor placed_linear(const at::Tensor& x, const TensorParallelPlan& plan,
                         std::string_view module, const LinearParameters& linear);

struct LlamaPlanOptions {
  std::string axis = "tp";
  /// Between blocks each rank holds a part of the sequence, and norms and dropout work on it.
  bool sequence_parallel = false;
  /// Logits stay sharded along the vocabulary, and the loss is taken of them so. If false, they are
  /// gathered.
  bool loss_parallel = true;
  /// How many heads queries have, and keys and values, to be checked against the axis. 0: no check.
  std::int64_t heads = 0;
  std::int64_t key_value_heads = 0;
  /// Of the plan: see TensorParallelPlan::overlap.
  OverlapOptions overlap = {.chunks = 1};
};

/// The plan for Llama-like models, by Meta's names (wq, wk, wv, wo, w1, w2, w3, ...) or Hugging
/// Face's (q_proj, ..., lm_head). Communication for each layer: forward 2 P->R, backward 2 P->R;
/// with sequence parallelism 2 S->R and 2 P->S in each direction, and the gradients of the norms.
///
/// The parts of the feed-forward network are optional. In models with experts, the attention, the
/// embedding and the head are sharded, and so are experts that are modules with such parts. Experts
/// whose weights are in one tensor, and routers, stay R: every rank computes all of them.
TensorParallelPlan llama_plan(const LlamaPlanOptions& options = {});

/// `layouts` for a module (itself, a std::shared_ptr to one, or a holder).
template <class Module>
LayoutPatterns layouts_of(const TensorParallelPlan& plan, const Mesh& mesh, const Module& module) {
  std::vector<std::string> modules;
  for (const auto& item : module_of(module).named_modules("", /*include_self=*/false))
    modules.push_back(item.key());
  std::vector<NamedShape> tensors;
  for (const auto& [name, tensor] : tensors_of(module))
    tensors.emplace_back(name, tensor.sizes().vec());
  return layouts(plan, mesh, modules, tensors);
}

/// `build` by a plan. A plan without entries replicates all. Write the plan's type where it is
/// passed: braces alone stand for LayoutPatterns.
template <std::derived_from<TensorParallelPlan> Plan, class Make>
auto build(World& world, const Mesh& mesh, const Plan& plan, Make&& make) {
  BuildScope scope(world, mesh);
  auto module = make();
  scope.finish(tensors_of(module), layouts_of(plan, mesh, module));
  return module;
}

}  // namespace intarsia
