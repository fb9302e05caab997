// fully_shard: parameters that every rank stores a piece of, and that are gathered when they are
// used.
//
//     const FullyShardOptions over{.shard = {"dp"}};
//     auto net = build_sharded(*world, mesh, {}, over, [] { return Net(); });
//     torch::optim::AdamW optimizer(net->parameters(), 1e-3);
//     net->forward(batch).square().mean().backward();  // as on one device
//     optimizer.step();
//
// A sharded parameter has two layouts. It is stored sharded over the shard axes: that is what the
// optimizer, checkpoints and everything else that looks after parameters sees, and what autograd
// saves. An op that uses it together with something else, such as an activation, gets it in the
// layout of use: as it was before, for example sharded by tensor parallelism, and not sharded over
// the shard axes.
//
// Parameters come in groups, normally one for each block of the model. A group is gathered by one
// collective when one of its parameters is first used. Meanwhile the next group of the recorded
// order is gathered. A group is dropped when the next is used, so that at most two are there at any
// time. Gradients of a group are reduced and scattered by one collective, while backward goes on.
// `param.grad` is set when backward ends.
//
// Ranks may differ in what they use. Every rank gathers all groups, in the order that all agreed
// upon after the first step, and the gradient of a parameter that a rank did not use counts as
// zeros. A gradient that no rank has stays undefined.
//
// Not run on GPUs. The order of computing and communicating streams is left to c10d's wait() there.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "intarsia/build.h"
#include "intarsia/layout.h"
#include "intarsia/tensor_parallel.h"
#include "intarsia/world.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace intarsia {

struct FullyShardOptions {
  /// The axes over which parameters are sharded; several count as one, of which the first varies
  /// slowest.
  std::vector<std::string> shard = {};
  /// Axes over which the pieces are replicated (hybrid sharding): gradients are summed over them
  /// too.
  std::vector<std::string> replicate = {};
  /// The dimension to shard, by pattern of names; the first that fits counts. Dimension 0 where
  /// none fits.
  std::vector<std::pair<std::string, int>> dims = {};
  /// The dtype in which parameters are gathered and used. Unset: as they are stored.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// The dtype in which gradients are reduced. Unset: as they are stored.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Keeps what was gathered in forward until its backward is done: half as many gathers, and the
  /// memory of all parameters.
  bool keep_after_forward = false;
  /// Gathers the next group while one is used.
  bool prefetch = true;
  /// Stores pieces and gradients in the memory of the CPU, if the world's device is another one.
  bool offload = false;
};

/// A parameter, by name. `use`: the layout in which it is used, if it is stored sharded already.
/// Unset: it is used in the layout that it has now.
struct ShardedParameter {
  std::string name;
  at::Tensor tensor;
  std::optional<Layout> use = std::nullopt;
};

/// Parameters that are gathered together.
struct ParameterGroup {
  std::string name;
  std::vector<ShardedParameter> parameters;
};

/// What one group did; see FullyShard::groups.
struct GroupReport {
  std::string name;
  std::uint64_t gathers = 0;
  std::uint64_t reductions = 0;
  std::uint64_t gather_bytes = 0;  ///< of one gather: what this rank then has
  std::uint64_t reduce_bytes = 0;  ///< of one reduction: what this rank hands over
  /// How long code waited for gathers, in seconds per step: in the first step, where a group is
  /// gathered when it is used, and on average in later ones, where it is gathered ahead.
  double exposed_at_first = 0;
  double exposed = 0;
};

/// Parameters under fully_shard. Keep the handle as long as they are trained: it reduces gradients
/// in groups while backward goes on. Without it each gradient is reduced by itself, when it comes.
class FullyShard {
 public:
  virtual ~FullyShard() = default;

  /// A scope in which gradients stay where they are, not reduced, until the next backward outside
  /// of it.
  class NoSync {
   public:
    explicit NoSync(FullyShard& sharded);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    FullyShard& sharded_;
    bool before_;
  };

  /// For a rank whose loss used none of the parameters, so that its backward could not take part.
  /// COLLECTIVE: with the backward of the other ranks.
  virtual void finish() = 0;
  /// Drops what is gathered: after an evaluation, for example.
  virtual void release() = 0;

  /// Gathers all groups, which stay until `let_go`, for several forwards and backwards: the
  /// microbatches of a pipeline, or of accumulated gradients. From the first `hold` to `reduce`
  /// gradients stay unreduced, so that backwards in between communicate nothing. COLLECTIVE: all
  /// ranks of the shard axes.
  virtual void hold() = 0;
  /// Drops the groups. Gradients that were not reduced stay.
  virtual void let_go() = 0;
  /// The same, and drops gradients that were not reduced, after an error.
  virtual void forget() = 0;
  /// Reduces the gradients that were kept since `hold`, and adds them to those that parameters
  /// have. COLLECTIVE: all ranks of the shard and the replicate axes.
  virtual void reduce() = 0;

  /// How many groups are gathered, or on their way, now; and the most there ever were.
  virtual std::size_t gathered() const = 0;
  virtual std::size_t most_gathered() const = 0;

  virtual std::vector<GroupReport> groups() const = 0;
  /// A table of the groups, of what was moved ahead of its use, and of what that saved.
  std::string report() const;

 private:
  friend class NoSync;
  virtual bool set_sync(bool on) = 0;
};

/// Shards parameters in place. REQUIRES: they are distributed, on one mesh of one world, and
/// sharded over none of the shard axes, unless `use` says how they are used; all ranks name the
/// same groups. A parameter that comes several times (tied weights) belongs to the first group.
/// Where it throws, nothing was changed. Communicates nothing.
std::shared_ptr<FullyShard> fully_shard(std::vector<ParameterGroup> groups,
                                        const FullyShardOptions& options);

/// Throws what fully_shard would throw, and changes nothing. A parameter that is still plain is
/// taken to be laid out as `use` says.
void check_fully_shard(const std::vector<ParameterGroup>& groups, const FullyShardOptions& options);

/// The groups of a module. `blocks`: patterns of names of modules, in which `*` stands for part of
/// one name, such as `layers.*`; each module that fits is a group. Without patterns, each element
/// of the outermost ModuleLists and Sequentials is a group. The parameters that are left make
/// groups of neighbours, in their order: those before the blocks, between and after them.
std::vector<ParameterGroup> parameter_groups(const torch::nn::Module& module,
                                             const std::vector<std::string>& blocks = {});

/// The same from names alone, for other languages: `modules` are the names of all modules that fit.
std::vector<ParameterGroup> parameter_groups(const NamedTensors& parameters,
                                             const std::vector<std::string>& modules);

/// The layout in which fully_shard stores a parameter that is used as `use`: the shard axes shard
/// one dimension (see FullyShardOptions::dims) after all other axes that shard it. A tensor without
/// dimensions stays as it is.
Layout sharded_layout(const Layout& use, std::size_t dims, const FullyShardOptions& options,
                      std::string_view name);

/// How parameters are stored whose layouts in use are given by patterns: as patterns for
/// BuildScope; and their layouts in use.
struct ShardedBuild {
  LayoutPatterns stored;
  std::vector<Layout> use;  ///< by tensor
};
ShardedBuild plan_sharded_build(const Mesh& mesh, const NamedTensors& parameters,
                                const NamedTensors& buffers, const LayoutPatterns& patterns,
                                const FullyShardOptions& options);

/// A module and its sharding.
template <class Module>
struct Sharded {
  Module module;
  std::shared_ptr<FullyShard> sharding;
  auto operator->() { return &module_of(module); }
  auto& operator*() { return module_of(module); }
};

/// A function that takes what `Make` makes, and gives its layouts in use.
template <class Function, class Make>
concept GivesLayouts = requires(const Function& function, std::invoke_result_t<Make&>& made) {
  function(made);
};

/// Makes a module whose parameters are sharded from birth: no rank ever holds a full one, unless it
/// uses it. `layouts_of_module`: a function that gives the layouts in use, as patterns (see
/// build.h), for what `make` made.
template <class LayoutsOf, class Make>
requires GivesLayouts<LayoutsOf, Make>
auto build_sharded(World& world, const Mesh& mesh, const LayoutsOf& layouts_of_module,
                   const FullyShardOptions& options, Make&& make,
                   const std::vector<std::string>& blocks = {}) {
  BuildScope scope(world, mesh);
  auto made = make();
  auto& module = module_of(made);
  const auto parameters = named_tensors(module.named_parameters());
  const auto buffers = named_tensors(module.named_buffers());
  const LayoutPatterns patterns = layouts_of_module(made);
  const ShardedBuild plan = plan_sharded_build(mesh, parameters, buffers, patterns, options);
  scope.finish(named_tensors(module.named_buffers(), parameters), plan.stored);
  auto groups = parameter_groups(module, blocks);
  for (ParameterGroup& group : groups) {
    for (ShardedParameter& p : group.parameters) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].first == p.name) p.use = plan.use[i];
      }
    }
  }
  auto sharding = fully_shard(std::move(groups), options);
  return Sharded<decltype(made)>{std::move(made), std::move(sharding)};
}

/// The same with patterns, which may be written as braces: `{}` for parameters that are replicated
/// in use.
template <class Make>
auto build_sharded(World& world, const Mesh& mesh, const LayoutPatterns& patterns,
                   const FullyShardOptions& options, Make&& make,
                   const std::vector<std::string>& blocks = {}) {
  return build_sharded(
      world, mesh, [&](const auto&) { return patterns; }, options, std::forward<Make>(make),
      blocks);
}

/// The same by a plan of tensor parallelism.
template <std::derived_from<TensorParallelPlan> Plan, class Make>
auto build_sharded(World& world, const Mesh& mesh, const Plan& plan,
                   const FullyShardOptions& options, Make&& make,
                   const std::vector<std::string>& blocks = {}) {
  return build_sharded(
      world, mesh, [&](const auto& made) { return layouts_of(plan, mesh, made); }, options,
      std::forward<Make>(make), blocks);
}

}  // namespace intarsia
