#include "pipeline/run/step_run.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/phase.h"
#include "intarsia/tensor.h"
#include "pipeline/run/words.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia::pipeline {
namespace {

using enum ActionKind;

/// What a stage sees of a leaf: no leaf, so that the stage may write to it.
struct Entered : torch::autograd::Function<Entered> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& leaf) {
    return leaf.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0]};
  }
};

bool gives_gradients(const at::Tensor& t) { return t.defined() && t.requires_grad(); }

/// What a stage is called with.
Tensors entered(const Tensors& leaves, bool keeps_leaves) {
  Tensors out;
  for (const at::Tensor& leaf : leaves) {
    if (!leaf.defined()) {
      out.emplace_back();
    } else if (gives_gradients(leaf) && at::GradMode::is_enabled()) {
      out.push_back(Entered::apply(keeps_leaves ? leaf.clone() : leaf));
    } else {
      out.push_back(keeps_leaves ? leaf.detach().clone() : leaf.detach());
    }
  }
  return out;
}

Tensors detached(const Tensors& tensors) {
  Tensors out;
  for (const at::Tensor& t : tensors) out.push_back(t.defined() ? t.detach() : t);
  return out;
}

}  // namespace

std::vector<at::Tensor> leaves_of(const PipelineStage& stage) {
  std::vector<at::Tensor> out;
  for (const auto& [name, tensor] : stage.parameters) out.push_back(tensor);
  for (const SharedWeight& shared : stage.shared) out.push_back(shared.copy);
  return out;
}

StepRun::StepRun(Connections& connections, const StepPlan& plan, Boundaries& known)
    : connections_(connections),
      plan_(plan),
      transfers_(connections, plan.schedule, plan.microbatches.size(), known),
      at_(plan.schedule.ranks.size(), 0),
      losses_(plan.microbatches.size()) {
  const auto stages = static_cast<std::size_t>(plan.schedule.stages());
  for (std::size_t s = 0; s < stages; ++s) cells_.emplace_back(plan.microbatches.size());
  if (!plan.trains) return;
  for (int s = 0; s < plan.schedule.stages(); ++s) {
    if (!hosts_any(connections_.world, mesh_of(s))) continue;
    kept_[s] = std::make_unique<KeptGradients>(leaves_of(plan.stages[static_cast<std::size_t>(s)]));
  }
}

void StepRun::run() {
  std::vector<std::size_t> here;
  for (std::size_t p = 0; p < connections_.places.size(); ++p) {
    if (hosts_any(connections_.world, connections_.places[p])) here.push_back(p);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (const std::size_t place : here) moved = go_on(place) || moved;
  }
  for (auto& [key, link] : connections_.links) link.finish_sending();
}

/// Runs the actions of a place, in lockstep as far as what they need is there.
bool StepRun::go_on(std::size_t place) {
  const std::vector<Action>& actions = plan_.schedule.ranks[place];
  const std::size_t begin = at_[place];
  while (at_[place] < actions.size()) {
    const Action& action = actions[at_[place]];
    if (connections_.world.in_lockstep() && !can_go_on(action)) break;
    act(action);
    ++at_[place];
  }
  return at_[place] != begin;
}

bool StepRun::can_go_on(const Action& action) const {
  const auto transfer = needs(plan_.schedule, action);
  return !transfer || transfers_.has_come(*transfer);
}

void StepRun::act(const Action& action) {
  PipelineStage& stage = plan_.stages[static_cast<std::size_t>(action.stage)];
  switch (action.kind) {
    case forward:
      return run_forward(action);
    case backward:
    case input_backward:
    case weight_backward:
      return run_backward(action);
    case send_forward:
      return transfers_.send(action,
                             std::exchange(cell(action.stage, action.microbatch).outputs, {}));
    case send_backward:
      return transfers_.send(
          action, std::exchange(cell(action.stage, action.microbatch).input_gradients, {}));
    case receive_forward:
    case receive_backward:
      return transfers_.expect(action);
    case gather:
      if (stage.sharding) stage.sharding->hold();
      return;
    case free:
      if (stage.sharding) stage.sharding->let_go();
      return;
    case reduce:
      if (!plan_.trains) return;
      if (stage.sharding) stage.sharding->reduce();
      kept_.at(action.stage)->reduce();
      return;
  }
}

// ---- computing ----------------------------------------------------------------------------------

StageCall StepRun::call_of(const Action& action, Tensors inputs) const {
  return {.stage = action.stage,
          .microbatch = action.microbatch,
          .trains = plan_.trains,
          .inputs = std::move(inputs),
          .batch = plan_.microbatches[static_cast<std::size_t>(action.microbatch)],
          .losses = {},
          .world = &connections_.world,
          .key = plan_.key};
}

Tensors StepRun::compute(StageCall& call) const {
  const PipelineStage& stage = plan_.stages[static_cast<std::size_t>(call.stage)];
  if (!stage.forward) {
    fail<ValueError>(kWhere, "stage ", call.stage,
                     " is on this rank and has no forward; set PipelineStage::forward");
  }
  const StageCall::Part part = call.part(-1 - call.stage);
  Tensors outputs = stage.forward(call);
  const bool is_last = call.stage + 1 == plan_.schedule.stages();
  if (!is_last || !plan_.options.loss) return outputs;
  const at::Tensor loss = plan_.options.loss(outputs, call);
  if (!loss.defined() || loss.dim() > 1 || loss.numel() != 1) {
    fail<ValueError>(kWhere, "the loss of a microbatch is ",
                     loss.defined() ? describe(loss) : std::string("undefined"),
                     "; return a scalar");
  }
  call.losses.push_back(loss);
  return outputs;
}

void StepRun::run_forward(const Action& action) {
  const Phase phase(concat("forward of stage ", action.stage));
  Cell& mine = cell(action.stage, action.microbatch);
  const auto transfer = needs(plan_.schedule, action);
  if (transfer) {
    mine.inputs = transfers_.take(*transfer, plan_.trains);
  } else if (action.stage > 0) {
    Cell& before = cell(action.stage - 1, action.microbatch);
    for (const at::Tensor& t : before.outputs) {
      mine.inputs.push_back(t.defined() ? t.detach().set_requires_grad(t.requires_grad()) : t);
    }
    before.outputs.clear();
  }
  const bool again = plan_.trains && plan_.options.recompute;
  const at::AutoGradMode gradients(plan_.trains && !again);
  StageCall call = call_of(action, entered(mine.inputs, again));
  mine.outputs = compute(call);
  mine.output_count = mine.outputs.size();
  mine.losses = call.losses;
  for (const at::Tensor& loss : call.losses) {
    losses_[static_cast<std::size_t>(action.microbatch)].push_back(loss.detach());
  }
  if (again) {
    // What would require gradients is known only where they are recorded.
    const bool trains =
        std::ranges::any_of(mine.inputs, gives_gradients) ||
        std::ranges::any_of(leaves_of(plan_.stages[static_cast<std::size_t>(action.stage)]),
                            gives_gradients);
    for (at::Tensor& t : mine.outputs) {
      if (t.defined() && trains && (t.is_floating_point() || t.is_complex())) {
        t = t.detach().set_requires_grad(true);
      }
    }
  } else if (plan_.trains) {
    mine.graph = graph_of(mine);
  }
  if (action.stage + 1 == plan_.schedule.stages()) {
    if (!plan_.trains) {
      outputs_.resize(plan_.microbatches.size());
      outputs_[static_cast<std::size_t>(action.microbatch)] = detached(mine.outputs);
    }
    mine.outputs.clear();
  }
  if (!plan_.trains) mine.inputs.clear();
}

void StepRun::compute_again(const Action& action) {
  Cell& mine = cell(action.stage, action.microbatch);
  const at::AutoGradMode gradients(true);
  StageCall call = call_of(action, entered(mine.inputs, true));
  mine.outputs = compute(call);
  if (mine.outputs.size() != mine.output_count || call.losses.size() != mine.losses.size()) {
    fail<ValueError>(kWhere, "stage ", action.stage, " gave ", mine.output_count, " tensors and ",
                     mine.losses.size(), " losses, and when it was computed again ",
                     mine.outputs.size(), " and ", call.losses.size());
  }
  mine.losses = call.losses;
  mine.graph = graph_of(mine);
}

StageGraph StepRun::graph_of(const Cell& cell) {
  Tensors roots = cell.outputs;
  roots.insert(roots.end(), cell.losses.begin(), cell.losses.end());
  return {cell.inputs, roots};
}

/// Of what a stage gave, and of its losses.
Tensors StepRun::gradients_for(const Action& action) {
  Cell& mine = cell(action.stage, action.microbatch);
  Tensors out;
  if (const auto transfer = needs(plan_.schedule, action)) {
    out = transfers_.take(*transfer, plan_.trains);
  } else if (action.stage + 1 < plan_.schedule.stages()) {
    out = std::exchange(cell(action.stage + 1, action.microbatch).input_gradients, {});
  }
  out.resize(mine.output_count);
  const double scale = plan_.scales[static_cast<std::size_t>(action.microbatch)];
  for (const at::Tensor& loss : std::exchange(mine.losses, {})) {
    // What counts nothing may not be a number.
    out.push_back(scale == 0 ? at::Tensor() : at::full_like(loss, scale));
  }
  return out;
}

void StepRun::run_backward(const Action& action) {
  const Phase phase(concat("backward of stage ", action.stage));
  Cell& mine = cell(action.stage, action.microbatch);
  if (action.kind == weight_backward) {
    mine.graph.weight_gradients();
    return end(mine);
  }
  if (plan_.options.recompute) compute_again(action);
  const Tensors gradients = gradients_for(action);
  mine.input_gradients = action.kind == backward ? mine.graph.backward(gradients)
                                                 : mine.graph.input_gradients(gradients);
  mine.outputs.clear();
  if (action.kind == backward) end(mine);
}

void StepRun::end(Cell& cell) {
  cell.graph = {};
  cell.inputs.clear();
}

std::vector<double> StepRun::losses() const {
  const at::NoGradGuard no_grad;
  std::vector<double> out;
  for (const auto& of_microbatch : losses_) {
    double sum = 0;
    for (const at::Tensor& loss : of_microbatch) {
      const at::Tensor plain = has_layout(loss) ? full(loss) : loss;
      sum += plain.to(at::kCPU, at::kDouble).item<double>();
    }
    out.push_back(sum);
  }
  return out;
}

}  // namespace intarsia::pipeline
