// LocalStep: what one rank saves of a step, and all that can be told of it without other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/write_plan.h"
#include "checkpoint/transfer/rank_file.h"

namespace intarsia::checkpoint {

/// What is saved. Tensors and values are the same on all ranks; pieces are each rank's.
struct StepState {
  std::span<const SavedTensor> tensors;
  /// One for each tensor.
  Pieces pieces;
  Json values = Json::object();
  /// The form: see Manifest.
  std::optional<std::uint64_t> hf_file_bytes = {};
};

class LocalStep {
 public:
  /// ValueError for partial values, names that come twice, pieces of other sizes than their layouts
  /// say, and values that JSON cannot hold. REQUIRES: tensors stay where they are, and the memory
  /// of the pieces too until it was staged.
  LocalStep(StepState state, std::int64_t rank, std::int64_t world);

  const StepState& state() const { return state_; }
  const WritePlan& plan() const { return plan_; }
  const RankFilePlan& file() const { return file_; }
  /// The bytes of each share of the file.
  Pieces shares() const { return shares_; }

  /// Hashes the pieces that other ranks hold too.
  void hash_replicas();
  /// One for each line that is shared (see WritePlan); none before `hash_replicas`.
  const std::map<std::size_t, std::uint64_t>& replica_hashes() const { return replica_hashes_; }

  /// Copies what will be written, so that the pieces are free to change. REQUIRES: `into` has
  /// `staged_bytes`, and stays.
  void stage(std::span<std::byte> into);
  std::uint64_t staged_bytes() const;

  /// Some tensors of a line by name, for messages.
  std::string tensors_of_line(std::size_t line) const;

 private:
  StepState state_;
  WritePlan plan_;
  RankFilePlan file_;
  std::vector<std::span<const std::byte>> shares_;
  std::map<std::size_t, std::uint64_t> replica_hashes_;
};

}  // namespace intarsia::checkpoint
