#include "intarsia/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "pipeline/run/agreement.h"
#include "pipeline/run/foreign_gradients.h"
#include "pipeline/run/shared_weights.h"
#include "pipeline/run/step_run.h"
#include "pipeline/run/words.h"
#include "pipeline/schedule/actions.h"
#include "tensor/core/impl.h"
#include "tensor/move/state.h"
#include "tensor/random/seeded_scope.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {

using pipeline::Boundaries;
using pipeline::Connections;
using pipeline::ForeignGradients;
using pipeline::Intent;
using pipeline::kWhere;
using pipeline::Line;
using pipeline::SharedWeights;
using pipeline::StepPlan;
using pipeline::StepRun;

namespace {

constexpr std::size_t kMostKnown = 64;  // kinds of batches

/// How many pipelines there were in a world: their groups have names of their own.
struct Pipelines final : World::Extension {
  std::int64_t made = 0;
  static std::unique_ptr<World::Extension> make(World& /*world*/) {
    return std::make_unique<Pipelines>();
  }
};

/// A hash of what decides about sizes: dtypes and sizes, not values.
std::uint64_t sizes_of(const std::vector<StageTensors>& microbatches) {
  std::uint64_t hash = 0;
  for (const StageTensors& batch : microbatches) {
    hash = hash_mix(hash, batch.size());
    for (const at::Tensor& t : batch) {
      hash = hash_mix(hash, t.defined() ? hash_text(describe(t)) : 0);
    }
  }
  return hash;
}

/// The words of an error, without a backtrace.
std::string what_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const Failure*>(&error);
  return ours != nullptr ? ours->text() : error.what();
}

double rows_of(const StageTensors& batch) {
  if (batch.empty() || !batch[0].defined() || batch[0].dim() == 0) return 1;
  return static_cast<double>(batch[0].size(0));
}

}  // namespace

// ---- random numbers of a part -------------------------------------------------------------------

struct StageCall::Part::Scope {
  SeededScope seeded;
};

StageCall::Part::Part(std::unique_ptr<Scope> scope) : scope_(std::move(scope)) {}
StageCall::Part::~Part() = default;

StageCall::Part StageCall::part(std::int64_t part) const {
  std::uint64_t seed = hash_mix(key, static_cast<std::uint64_t>(microbatch));
  seed = hash_mix(seed, static_cast<std::uint64_t>(part));
  return Part(std::unique_ptr<Part::Scope>(new Part::Scope{{*world, seed}}));
}

std::vector<Mesh> pipeline_places(const Mesh& mesh, std::string_view axis) {
  const std::size_t along = mesh.axis_index(axis);
  std::vector<std::string> others = mesh.names();
  std::erase(others, std::string(axis));
  std::vector<Mesh> out;
  for (std::int64_t i = 0; i < mesh.size(along); ++i) {
    Coordinate at(mesh.axes(), 0);
    at[along] = i;
    out.push_back(mesh.slice(others, mesh.rank_at(at)).orphan());
  }
  return out;
}

// ---- a pipeline ---------------------------------------------------------------------------------

struct Pipeline::Impl {
  /// A schedule that was made ready for a number of microbatches.
  struct Ready {
    Schedule schedule;
    std::uint64_t hash = 0;
    bool is_open = false;  // its links are there
  };

  Impl(World& world, std::vector<Mesh> places, ScheduleMaker maker,
       std::vector<PipelineStage> stages, PipelineOptions options)
      : world(world),
        places(std::move(places)),
        maker(std::move(maker)),
        stages(std::move(stages)),
        options(std::move(options)),
        name(
            concat("pipeline ", static_cast<Pipelines&>(world.extension(&Pipelines::make)).made++)),
        line(world, this->places, name),
        connections{world, this->places, name},
        weights(world, this->places, this->stages, name),
        foreign(world, this->places, this->stages) {
    check_places();
  }

  void check_places() const {
    if (world.simulated()) {
      fail<UnsupportedError>(kWhere,
                             "simulated worlds have no pipelines yet; intarsia schedule simulates "
                             "their times");
    }
    if (places.empty() || stages.empty()) {
      fail<ValueError>(kWhere, "there are ", places.size(), " places and ", stages.size(),
                       " stages; it needs one of each");
    }
    std::vector<std::int64_t> seen;
    for (const Mesh& place : places) {
      const std::vector<Mesh> one{place};
      for (const std::int64_t rank : ranks_of(one)) seen.push_back(rank);
    }
    std::ranges::sort(seen);
    const auto twice = std::ranges::adjacent_find(seen);
    if (twice != seen.end()) {
      fail<ValueError>(kWhere, "rank ", *twice, " is in two places; places share no rank");
    }
    if (!std::ranges::any_of(places, [&](const Mesh& p) { return hosts_any(world, p); })) {
      fail<ValueError>(kWhere, "this process is in none of the ", places.size(), " places");
    }
  }

  Ready& ready(int microbatches, bool trains) {
    const std::pair key{microbatches, trains};
    if (const auto found = schedules.find(key); found != schedules.end()) return found->second;
    Schedule s = maker(microbatches);
    if (s.microbatches != microbatches) {
      fail<ValueError>(kWhere, "the schedule ", s.name, " is for ", s.microbatches,
                       " microbatches, and ", microbatches, " were given");
    }
    if (s.ranks.size() != places.size() || s.rank_of_stage.size() != stages.size()) {
      fail<ValueError>(kWhere, "the schedule ", s.name, " has ", s.rank_of_stage.size(),
                       " stages on ", s.ranks.size(), " ranks, and there are ", stages.size(),
                       " stages and ", places.size(), " places");
    }
    if (!trains) s = without_backward(s);
    const bool gathers = std::ranges::any_of(s.ranks, [](const std::vector<Action>& rank) {
      return std::ranges::any_of(rank, [](const Action& a) { return is_of_stage(a.kind); });
    });
    if (!gathers) {
      s = with_gathers(s, options.most_gathered > 0 ? options.most_gathered : s.stages());
    }
    check(s);
    const std::uint64_t hash = hash_text(s.to_string());
    return schedules.emplace(key, Ready{std::move(s), hash}).first->second;
  }

  PipelineResult run(const std::vector<StageTensors>& microbatches, bool trains);
  std::vector<double> weights_of(const Schedule& schedule,
                                 const std::vector<Intent>& intents) const;
  std::uint64_t trained() const;

  /// While an exception passes by: what is under way is left to its groups, and what a stage keeps
  /// of the step is dropped.
  struct OnFailure {
    Impl& impl;
    int before = std::uncaught_exceptions();
    ~OnFailure() {
      if (std::uncaught_exceptions() == before) return;
      impl.connections.links.clear();
      impl.weights.forget();
      for (const PipelineStage& stage : impl.stages) {
        if (stage.sharding) stage.sharding->forget();
      }
    }
  };

  World& world;
  const std::vector<Mesh> places;
  ScheduleMaker maker;
  std::vector<PipelineStage> stages;
  const PipelineOptions options;
  const std::string name;
  const Line line;
  Connections connections;
  SharedWeights weights;
  ForeignGradients foreign;
  std::map<std::pair<int, bool>, Ready> schedules;
  std::map<std::uint64_t, Boundaries> known;  // by what ranks said of their batches
  std::int64_t steps = 0;
  std::string broken;
};

/// What decides, beside sizes, which tensors and gradients pass, and in which dtypes.
std::uint64_t Pipeline::Impl::trained() const {
  const at::DeviceType device = world.device().type();
  std::uint64_t hash = 0;
  if (at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device)) {
    hash = hash_mix(1, static_cast<std::uint64_t>(at::autocast::get_autocast_dtype(device)));
  }
  for (const PipelineStage& stage : stages) {
    for (const auto& [parameter, tensor] : stage.parameters) {
      hash = hash_mix(hash, tensor.requires_grad() ? 1 : 0);
    }
  }
  return hash;
}

/// As the ranks of the last stage count.
std::vector<double> Pipeline::Impl::weights_of(const Schedule& schedule,
                                               const std::vector<Intent>& intents) const {
  const auto last = static_cast<std::size_t>(schedule.rank_of_stage.back());
  const auto found =
      std::ranges::find_if(line.members(), [&](const Line::Member& m) { return m.place == last; });
  const auto member = static_cast<std::size_t>(found - line.members().begin());
  const std::vector<double>& weights = intents[member].weights;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0)) {
      fail<ValueError>(kWhere, "microbatch ", i, " counts ", weights[i], "; a weight is 0 or more");
    }
  }
  return weights;
}

// ---- a step -------------------------------------------------------------------------------------

PipelineResult Pipeline::Impl::run(const std::vector<StageTensors>& microbatches, bool trains) {
  if (!broken.empty()) {
    fail<WorldError>(kWhere, "an earlier step failed: ", broken,
                     "; ranks are out of step, so make a new pipeline on all of them");
  }
  if (microbatches.empty()) fail<ValueError>(kWhere, "a step has at least one microbatch");
  if (trains && !options.loss) {
    fail<ValueError>(kWhere, "a step needs a loss; set PipelineOptions::loss, or use evaluate");
  }
  Ready& now = ready(static_cast<int>(microbatches.size()), trains);
  const Schedule& schedule = now.schedule;
  Intent intent{.trains = trains ? 1 : 0,
                .step = steps,
                .schedule = now.hash,
                .batch = hash_mix(sizes_of(microbatches), trained()),
                .key = TensorState::of(world).draws().next()};
  for (const StageTensors& batch : microbatches) {
    intent.weights.push_back(options.weight ? options.weight(batch) : rows_of(batch));
  }
  const std::vector<Intent> intents = line.agree(intent);
  const std::vector<double> weight = weights_of(schedule, intents);
  const double weight_sum = std::accumulate(weight.begin(), weight.end(), 0.0);
  StepPlan plan{.schedule = schedule,
                .stages = stages,
                .options = options,
                .microbatches = microbatches,
                .trains = trains,
                .key = intents[0].key};
  for (const double w : weight) {
    plan.scales.push_back(options.sums_losses ? 1 : weight_sum > 0 ? w / weight_sum : 0);
  }
  std::uint64_t sizes = trains ? 1 : 0;
  for (const Intent& each : intents) sizes = hash_mix(sizes, each.batch);

  ++steps;
  PipelineResult out;
  try {
    const OnFailure failure{*this};
    Boundaries announced;
    const bool is_known = !options.sizes_vary && known.contains(sizes);
    if (!std::exchange(now.is_open, true)) connections.open(schedule);
    weights.share(schedule);
    StepRun step(connections, plan, is_known ? known[sizes] : announced);
    step.run();
    if (trains) weights.give_back(schedule);
    std::vector<double> numbers = step.losses();
    const std::vector<double> gradients = trains ? foreign.marks(schedule) : std::vector<double>();
    numbers.insert(numbers.end(), gradients.begin(), gradients.end());
    const auto told = line.gather("losses", numbers);
    out.losses.assign(microbatches.size(), 0);
    for (std::size_t m = 0; m < told.size(); ++m) {
      if (!line.members()[m].speaks) continue;
      for (std::size_t i = 0; i < out.losses.size(); ++i) out.losses[i] += told[m][i];
    }
    if (trains) foreign.fill(schedule, told, microbatches.size());
    out.outputs = step.take_outputs();
    if (!is_known && !options.sizes_vary) {
      if (known.size() >= kMostKnown) known.clear();
      known.emplace(sizes, std::move(announced));
    }
  } catch (const std::exception& error) {
    broken = what_of(error);
    throw;
  } catch (...) {  // of another language
    broken = "a stage threw";
    throw;
  }
  for (std::size_t i = 0; i < weight.size(); ++i) {
    if (plan.scales[i] != 0) out.loss += plan.scales[i] * out.losses[i];
  }
  if (!options.sums_losses && weight_sum == 0) out.loss = std::numeric_limits<double>::quiet_NaN();
  return out;
}

// ---- what users see -----------------------------------------------------------------------------

Pipeline::Pipeline(World& world, std::vector<Mesh> places, ScheduleMaker schedule,
                   std::vector<PipelineStage> stages, PipelineOptions options)
    : impl_(std::make_unique<Impl>(world, std::move(places), std::move(schedule), std::move(stages),
                                   std::move(options))) {}

namespace {

Pipeline::ScheduleMaker schedules_of(ScheduleKind kind, std::size_t places, std::size_t stages) {
  const auto ranks = static_cast<int>(places);
  const auto count = static_cast<int>(stages);
  return [=](int microbatches) {
    if (count % ranks != 0) {
      fail<ValueError>(kWhere, to_text(kind), " has equally many stages on each of ", ranks,
                       " places, and ", count, " were given");
    }
    return make_schedule(kind,
                         {.ranks = ranks, .microbatches = microbatches, .chunks = count / ranks});
  };
}

}  // namespace

Pipeline::Pipeline(World& world, const std::vector<Mesh>& places, ScheduleKind kind,
                   const std::vector<PipelineStage>& stages, PipelineOptions options)
    : Pipeline(world, places, schedules_of(kind, places.size(), stages.size()), stages,
               std::move(options)) {}

Pipeline::Pipeline(World& world, std::vector<Mesh> places, const Schedule& schedule,
                   std::vector<PipelineStage> stages, PipelineOptions options)
    : Pipeline(
          world, std::move(places), [schedule](int /*microbatches*/) { return schedule; },
          std::move(stages), std::move(options)) {}

Pipeline::~Pipeline() = default;

PipelineResult Pipeline::step(const std::vector<StageTensors>& microbatches) {
  return impl_->run(microbatches, true);
}

PipelineResult Pipeline::evaluate(const std::vector<StageTensors>& microbatches) {
  return impl_->run(microbatches, false);
}

const Schedule& Pipeline::schedule(int microbatches) {
  return impl_->ready(microbatches, true).schedule;
}

}  // namespace intarsia
