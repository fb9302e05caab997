// predict: what a training step takes on one rank of a world that need not exist.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "intarsia/communication.h"
#include "intarsia/mesh.h"
#include "intarsia/simulate.h"
#include "intarsia/step_time.h"

namespace intarsia {

struct PredictOptions {
  /// The mesh of the job; the world has as many ranks as it needs.
  Mesh mesh;
  /// The rank that is asked about.
  std::int64_t rank = 0;
  /// See SimulateOptions.
  std::string backend = "gloo";
};

/// The tensors that a training program keeps from step to step.
struct KeptTensors {
  std::vector<at::Tensor> parameters = {};
  /// The tensors of the optimizer's state.
  std::vector<at::Tensor> optimizer = {};
  /// Another step of the same training, if its time is asked for: it is run once more.
  std::function<void()> step = {};
};

/// Bytes on one rank.
struct Prediction {
  Mesh mesh;
  std::int64_t rank = 0;
  std::int64_t parameters = 0;
  /// Those that are there when the program ends.
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  /// The most that all tensors together held at any time.
  std::int64_t peak = 0;
  /// What it sent.
  Bill bill;
  /// What the rank does in the step that the program returned, if it returned one.
  std::vector<StepEvent> events = {};

  /// What the peak holds beyond parameters, gradients and optimizer: activations, gathered
  /// parameters, buffers of collectives.
  std::int64_t activations() const;
  /// In which order the step computes, sends and waits. ValueError where the program returned none.
  std::string schedule() const;
  /// How long the step takes. ValueError likewise.
  StepTime time(const StepCosts& costs) const;
  /// `rank 0 of [dp=8,tp=2]: parameters 1.5 GiB, gradients ..., peak ...; sends ...`.
  std::string to_string() const;
};

/// Runs `program` in a simulated world: it makes model and optimizer, trains for a step or some,
/// leaves the gradients in place, and returns what it keeps. Values are never computed, so the time
/// that this takes does not depend on sizes, and hardly on the number of ranks.
Prediction predict(const PredictOptions& options,
                   const std::function<KeptTensors(World&)>& program);

/// The bytes of memory that tensors hold on the ranks hosted here; memory that several share is
/// counted once.
std::int64_t held_bytes(const std::vector<at::Tensor>& tensors);

}  // namespace intarsia
