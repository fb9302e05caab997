// Saving one step: from memory to a folder that is either complete or not there.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/session/ranks.h"
#include "checkpoint/transfer/rank_file.h"

namespace intarsia::checkpoint {

/// What is saved. Tensors, values and options are the same on all ranks; pieces are each rank's.
struct StepState {
  std::int64_t step = 0;
  std::span<const SavedTensor> tensors;
  /// One for each tensor.
  Pieces pieces;
  Json values = Json::object();
};

struct SaveOptions {
  /// A step that is there already is replaced, in one step. Otherwise it is an error.
  bool replace = false;
  /// Ranks that hold the same piece compare its hash before anything is written.
  bool check_replicas = true;
};

/// What this rank saves. Called once; its error is then the error of all ranks.
using StateMaker = std::function<StepState()>;

/// Saves a step in a folder of its own below `root`, which must be there. Returns when it would
/// survive a crash of all machines. On an error, which is the same on all ranks and names the rank
/// that met it, nothing has changed: a step that was there is still there.
/// COLLECTIVE: all ranks.
void save_step(Files& files, Ranks& ranks, const std::string& root, const StateMaker& make,
               const SaveOptions& options = {});

}  // namespace intarsia::checkpoint
