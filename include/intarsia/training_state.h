// TrainingState: what of a run goes on from step to step, saved and loaded by one call each.
//
//   TrainingState state;
//   state.add("model", net).add("optimizer", optimizer);
//   state.set("sample", "128000");
//   save_checkpoint(*world, "runs/a", step, state);
//   ...
//   load_checkpoint(*world, "runs/a", state);            // on any mesh, in any layouts
//   std::stoll(state.value("sample"));
//
// Names in files are those of Python's save_checkpoint: what either language saves, the other
// loads.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>

#include "intarsia/checkpoint.h"

namespace intarsia {

/// Modules, optimizers, generators, tensors and values by name. It refers to modules and
/// optimizers, which must outlive it; it holds no copies. A name is given once (ValueError).
///
/// Modules and optimizers may be plain or distributed. Parameters of optimizers go by the names
/// that they have in the modules that were added before; one that is in none of them, by its
/// number. Optimizers are Adam, AdamW, SGD, Adagrad, RMSprop and Muon; UnsupportedError for others.
class TrainingState {
 public:
  TrainingState();
  ~TrainingState();
  TrainingState(TrainingState&&) noexcept;
  TrainingState& operator=(TrainingState&&) noexcept;

  TrainingState& add(const std::string& name, torch::nn::Module& module);
  /// A std::shared_ptr to a module, or a holder such as torch::nn::Linear.
  template <class Holder>
  requires requires(Holder& holder) {
    { *holder } -> std::convertible_to<torch::nn::Module&>;
  }
  TrainingState& add(const std::string& name, Holder& holder) {
    return add(name, static_cast<torch::nn::Module&>(*holder));
  }
  TrainingState& add(const std::string& name, torch::optim::Optimizer& optimizer);
  TrainingState& add(const std::string& name, at::Generator generator);
  TrainingState& add(const std::string& name, at::Tensor tensor);
  /// What is no tensor, as a JSON text. May be set again.
  TrainingState& set(const std::string& name, std::string json);
  /// A value as it was set, or loaded. ValueError for a name that has none.
  const std::string& value(const std::string& name) const;

  /// Tensors of modules whose names fit a pattern (pattern.h) are neither saved nor loaded, such as
  /// tables that are computed. The name begins with the module's: `model.rotary.cos`.
  TrainingState& leave_out(const std::string& pattern);

  /// What is saved, for save_checkpoint and CheckpointManager. Communicates nothing.
  NamedTensors tensors() const;
  CheckpointValues values() const;

 private:
  friend void save_checkpoint(World& world, const std::string& folder, std::int64_t step,
                              const TrainingState& state, const SaveCheckpointOptions& options);
  friend CheckpointContents load_checkpoint(World& world, const std::string& folder,
                                            TrainingState& state,
                                            const LoadCheckpointOptions& options);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Saves a step. COLLECTIVE: all ranks of the world, which add the same things.
void save_checkpoint(World& world, const std::string& folder, std::int64_t step,
                     const TrainingState& state, const SaveCheckpointOptions& options = {});

/// Gives modules, optimizers, generators and tensors the values of a step, and sets all values that
/// it has. Optimizers may be new: their states are made, laid out as their parameters are. Before
/// anything changes, a ValueError lists what does not fit. `only` and `without` are for modules and
/// tensors: `only` for states that have nothing else. COLLECTIVE: all ranks of the world.
CheckpointContents load_checkpoint(World& world, const std::string& folder, TrainingState& state,
                                   const LoadCheckpointOptions& options);
CheckpointContents load_checkpoint(World& world, const std::string& folder, TrainingState& state);

/// Loads the newest step that can be read, if rank 0 sees any, and says which.
/// COLLECTIVE: all ranks of the world.
std::optional<std::int64_t> resume_checkpoint(World& world, const std::string& folder,
                                              TrainingState& state,
                                              LoadCheckpointOptions options = {});

}  // namespace intarsia
