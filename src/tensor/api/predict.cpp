#include "intarsia/predict.h"

#include <ATen/ATen.h>

#include <set>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/memory.h"
#include "plan/report.h"
#include "tensor/core/impl.h"
#include "tensor/local/kernel_log.h"
#include "world/session/step_log.h"

namespace intarsia {

std::int64_t held_bytes(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> seen;
  std::int64_t sum = 0;
  const auto add = [&](const at::Tensor& t) {
    if (seen.insert(t.storage().unsafeGetStorageImpl()).second) {
      sum += static_cast<std::int64_t>(t.storage().nbytes());
    }
  };
  for (const at::Tensor& t : tensors) {
    if (!t.defined()) continue;
    if (!is_ours(t)) {
      add(t);
      continue;
    }
    for (const at::Tensor& piece : impl_of(t).pieces()) add(piece);
  }
  return sum;
}

std::int64_t Prediction::activations() const { return peak - parameters - gradients - optimizer; }

namespace {

void check_has_step(const Prediction& p) {
  if (p.events.empty()) {
    fail<ValueError>("predict", "the program of ", p.mesh,
                     " returned no step to be timed; return a function that trains for another "
                     "step, behind model and optimizer");
  }
}

}  // namespace

std::string Prediction::schedule() const {
  check_has_step(*this);
  return schedule_text(events);
}

StepTime Prediction::time(const StepCosts& costs) const {
  check_has_step(*this);
  return step_time(events, costs, mesh);
}

std::string Prediction::to_string() const {
  return concat("rank ", rank, " of ", mesh, ": parameters ", bytes_text(parameters),
                ", gradients ", bytes_text(gradients), ", optimizer ", bytes_text(optimizer),
                ", activations ", bytes_text(activations()), ", peak ", bytes_text(peak),
                "; sends ", bytes_text(static_cast<std::int64_t>(bill.bytes())), " in ",
                bill.count(), " collectives");
}

Prediction predict(const PredictOptions& options,
                   const std::function<KeptTensors(World&)>& program) {
  const std::shared_ptr<World> world = simulate(
      {.size = options.mesh.highest() + 1, .rank = options.rank, .backend = options.backend});
  // Plain tensors that the program makes have real memory, and count like the rest.
  const MemoryMeter meter({c10::DeviceType::CPU, c10::DeviceType::Meta});
  const KeptTensors kept = program(*world);
  const std::int64_t peak = meter.peak();
  const Bill sent = bill(*world);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : kept.parameters) gradients.push_back(p.grad());
  Prediction out{.mesh = options.mesh,
                 .rank = options.rank,
                 .parameters = held_bytes(kept.parameters),
                 .gradients = held_bytes(gradients),
                 .optimizer = held_bytes(kept.optimizer),
                 .peak = peak,
                 .bill = sent};
  if (kept.step) {
    const KernelObserver observer;
    StepLog log;
    kept.step();
    out.events = log.take();
  }
  world->close();
  return out;
}

}  // namespace intarsia
