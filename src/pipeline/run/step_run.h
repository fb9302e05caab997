// One step of a pipeline on the ranks of this process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "intarsia/pipeline.h"
#include "parallel/gradients/kept_gradients.h"
#include "pipeline/run/stage_graph.h"
#include "pipeline/run/transfers.h"

namespace intarsia::pipeline {

/// What a step is about.
struct StepPlan {
  const Schedule& schedule;
  std::vector<PipelineStage>& stages;
  const PipelineOptions& options;
  const std::vector<StageTensors>& microbatches;
  bool trains = true;
  std::uint64_t key = 0;
  std::vector<double> scales{};  ///< what the loss of each microbatch is multiplied by
};

/// Runs the actions of the places that live here: of one, or in lockstep of all in turns.
class StepRun {
 public:
  /// `known`: what was agreed upon in an earlier step; empty where sizes are to be announced, and
  /// filled in then.
  StepRun(Connections& connections, const StepPlan& plan, Boundaries& known);

  void run();

  /// Losses by microbatch, summed over the stages here; 0 where these have none.
  std::vector<double> losses() const;
  /// What the last stage gave, by microbatch; nothing where it is elsewhere.
  std::vector<StageTensors> take_outputs() { return std::move(outputs_); }

 private:
  /// What a stage keeps of a microbatch.
  struct Cell {
    Tensors inputs;   // leaves
    Tensors outputs;  // until they are passed on
    StageGraph graph;
    Tensors losses;  // as the graph has them
    std::size_t output_count = 0;
    Tensors input_gradients;  // until they are passed on
  };

  bool go_on(std::size_t place);
  bool can_go_on(const Action& action) const;
  void act(const Action& action);
  void run_forward(const Action& action);
  StageCall call_of(const Action& action, Tensors inputs) const;
  /// Runs the stage, and its loss.
  Tensors compute(StageCall& call) const;
  void run_backward(const Action& action);
  void compute_again(const Action& action);
  static StageGraph graph_of(const Cell& cell);
  Tensors gradients_for(const Action& action);
  void end(Cell& cell);

  Cell& cell(int stage, int microbatch) {
    return cells_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(microbatch)];
  }
  int place_of(int stage) const {
    return plan_.schedule.rank_of_stage[static_cast<std::size_t>(stage)];
  }
  const Mesh& mesh_of(int stage) const {
    return connections_.places[static_cast<std::size_t>(place_of(stage))];
  }

  Connections& connections_;
  const StepPlan& plan_;
  StepTransfers transfers_;
  std::vector<std::size_t> at_;  // by place: the next action
  std::vector<std::vector<Cell>> cells_;
  std::map<int, std::unique_ptr<KeptGradients>> kept_;  // by stage
  std::vector<std::vector<at::Tensor>> losses_;         // by microbatch
  std::vector<StageTensors> outputs_;
};

/// The parameters of a stage, and what it has of other stages': whose gradients it makes.
std::vector<at::Tensor> leaves_of(const PipelineStage& stage);

}  // namespace intarsia::pipeline
