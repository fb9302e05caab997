// Pipelines: the stages of a model on different ranks, run by a schedule.
//
//     const std::vector<Mesh> places = pipeline_places(Mesh::parse("[pp=2,dp=2]"), "pp");
//     auto first = build(*world, places[0], {}, [] { return torch::nn::Linear(8, 16); });
//     auto last = build(*world, places[1], {}, [] { return torch::nn::Linear(16, 4); });
//     const auto loss = [](const StageTensors& outputs, const StageCall& call) {
//       return at::mse_loss(outputs[0], call.batch[1]);
//     };
//     Pipeline pipeline(*world, places, ScheduleKind::one_f_one_b,
//                       {{.forward = [&](StageCall& call) -> StageTensors {
//                           return {first->forward(call.batch[0]).tanh()};
//                         },
//                         .parameters = tensors_of(first)},
//                        {.forward = [&](StageCall& call) -> StageTensors {
//                           return {last->forward(call.inputs[0])};
//                         },
//                         .parameters = tensors_of(last)}},
//                       {.loss = loss});
//     const StageTensors rows{at::ones({2, 8}), at::ones({2, 4})};  // of one microbatch
//     std::cout << pipeline.step({rows, rows, rows}).loss;           // the same on all ranks
//     torch::optim::AdamW(first->parameters()).step();               // gradients are there
//
// A place is the ranks of one or several stages: a mesh, within which everything is as it is
// without a pipeline. Modules are made on all ranks, each on the mesh of its place: on ranks of
// other places their parameters hold no pieces. So names, optimizers, clipping and checkpoints are
// those of the entire model, and know of no stages.
//
// The loss of a step is that of all its rows: the mean over microbatches, weighted by their rows or
// by what `weight` says. Gradients are those of this loss, added to what was there, and reduced
// once. Not run on GPUs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "intarsia/build.h"
#include "intarsia/fully_shard.h"
#include "intarsia/mesh.h"
#include "intarsia/schedule.h"
#include "intarsia/world.h"

namespace intarsia {

/// What a stage gets and gives: distributed or plain tensors, of which some may be undefined.
using StageTensors = std::vector<at::Tensor>;

/// One call of a stage: of one microbatch.
struct StageCall {
  int stage = 0;
  int microbatch = 0;
  /// Not in an evaluation.
  bool trains = true;
  /// What the stage before gave; nothing for the first stage.
  StageTensors inputs = {};
  /// The microbatch as it was passed to `step`.
  StageTensors batch = {};

  /// Adds a scalar to the loss of this microbatch: for stages that have one of their own, such as
  /// that by which experts are balanced.
  void add_loss(const at::Tensor& loss) { losses.push_back(loss); }

  /// While it lives, random numbers depend on the step, the microbatch and `part` alone. A stage
  /// that makes one for each of its layers, with their numbers in the entire model, draws the same
  /// wherever the model is divided. Without one, `part` is the number of the stage.
  class Part {
   public:
    ~Part();
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    friend struct StageCall;
    struct Scope;
    explicit Part(std::unique_ptr<Scope> scope);
    std::unique_ptr<Scope> scope_;
  };
  Part part(std::int64_t part) const;

  // For the pipeline.
  std::vector<at::Tensor> losses = {};
  World* world = nullptr;
  std::uint64_t key = 0;
};

/// A parameter of another stage that a stage uses too, such as an embedding that is also the head.
/// The owner's rank alone trains and saves it.
struct SharedWeight {
  at::Tensor owner;  ///< a parameter of the other stage
  /// A leaf of the same sizes on the mesh of this stage. It gets the owner's values when a step
  /// begins, and its gradient is added to the owner's when the step ends.
  at::Tensor copy;
};

/// A stage, on all ranks. What is said of its mesh is the mesh of its place.
struct PipelineStage {
  /// What it computes. COLLECTIVE: the ranks of its mesh, if anything in it is. May be unset on
  /// other ranks.
  std::function<StageTensors(StageCall&)> forward = {};
  /// Distributed ones on its mesh. Ranks of other places pass them too, where they hold no pieces,
  /// and get gradients without pieces, so that optimizers are alike on all ranks. Plain ones are
  /// left alone.
  NamedTensors parameters = {};
  /// For parameters that are gathered when they are used: the schedule says when, and when their
  /// gradients are reduced.
  std::shared_ptr<FullyShard> sharding = {};
  std::vector<SharedWeight> shared = {};
};

struct PipelineOptions {
  /// The loss of a microbatch: a scalar, distributed or plain.
  std::function<at::Tensor(const StageTensors& outputs, const StageCall& call)> loss = {};
  /// How much a microbatch counts: 0 for one that counts nothing, whose loss may be NaN. Unset: its
  /// rows, the length of the first tensor of its batch. What the ranks of the last stage say
  /// counts.
  std::function<double(const StageTensors& batch)> weight = {};
  /// Losses are sums, so that they are added and not averaged.
  bool sums_losses = false;
  /// What a forward leaves is given up, and computed again from its inputs before the backward.
  bool recompute = false;
  /// Sizes between stages may depend on values, and are sent with each tensor. If false, they are
  /// agreed in the first step with batches of these sizes, and what differs later is an error.
  bool sizes_vary = false;
  /// The most stages of a rank that are gathered at a time, where stages are fully sharded. 0: all,
  /// gathered once in a step.
  int most_gathered = 0;
};

struct PipelineResult {
  double loss = 0;             ///< of the step, the same on all ranks
  std::vector<double> losses;  ///< by microbatch
  /// In an evaluation: what the last stage gave, by microbatch; nothing on other ranks.
  std::vector<StageTensors> outputs;
};

/// The meshes of the places along an axis: the other axes, at each index of it.
std::vector<Mesh> pipeline_places(const Mesh& mesh, std::string_view axis);

/// Runs schedules over stages.
///
/// Stages send each other what they gave, with the layout that it has: to the rank at the same
/// coordinate, where both meshes have the same sizes, or to those that need it. A tensor that goes
/// on to a mesh with other axes is R on those that its own mesh does not have.
///
/// All its functions are COLLECTIVE: all ranks of all places, with equal arguments but for values.
/// Where a rank fails, so do the others, and no further step is possible: make a new one.
/// THREADS: one at a time.
class Pipeline {
 public:
  /// A schedule for a number of microbatches.
  using ScheduleMaker = std::function<Schedule(int microbatches)>;

  /// REQUIRES: the schedule has as many ranks as there are places, and stages as there are; places
  /// share no rank. The schedule is checked when it is first used.
  Pipeline(World& world, std::vector<Mesh> places, ScheduleMaker schedule,
           std::vector<PipelineStage> stages, PipelineOptions options);
  /// With schedules of a kind: as many stages on each rank as there are places for `stages`.
  Pipeline(World& world, const std::vector<Mesh>& places, ScheduleKind kind,
           const std::vector<PipelineStage>& stages, PipelineOptions options);
  /// With one schedule, for its number of microbatches.
  Pipeline(World& world, std::vector<Mesh> places, const Schedule& schedule,
           std::vector<PipelineStage> stages, PipelineOptions options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Forward and backward of all microbatches. Gradients are there when it returns.
  PipelineResult step(const std::vector<StageTensors>& microbatches);
  /// Forward alone, without gradients.
  PipelineResult evaluate(const std::vector<StageTensors>& microbatches);

  /// The schedule of such a step, with what it sends and gathers.
  const Schedule& schedule(int microbatches);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace intarsia
