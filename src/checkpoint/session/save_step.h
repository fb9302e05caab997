// Saving one step: from memory to a folder that is either complete or not there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/files/files.h"
#include "checkpoint/session/local_step.h"
#include "checkpoint/session/ranks.h"

namespace intarsia::checkpoint {

struct SaveOptions {
  /// A step that is there already is replaced, in one step. Otherwise it is an error.
  bool replace = false;
  /// Ranks that hold the same piece compare its hash before anything is written.
  bool check_replicas = true;
};

/// What this rank saves. Called once; its error is then the error of all ranks.
using StateMaker = std::function<StepState()>;
/// The same, where the rank has worked out already what it will write; with the hashes of replicas
/// if they are to be compared.
using LocalStepMaker = std::function<LocalStep()>;

/// Saves a step in a folder of its own below `root`, which must be there. Returns when it would
/// survive a crash of all machines. On an error, which is the same on all ranks and names the rank
/// that met it, nothing has changed: a step that was there is still there.
/// COLLECTIVE: all ranks.
void save_step(Files& files, Ranks& ranks, const std::string& root, std::int64_t step,
               const StateMaker& make, const SaveOptions& options = {});
void save_local_step(Files& files, Ranks& ranks, const std::string& root, std::int64_t step,
                     const LocalStepMaker& make, const SaveOptions& options = {});

}  // namespace intarsia::checkpoint
