// Reading parts of saved tensors straight into the memory of the tensors that are loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/part.h"
#include "checkpoint/plan/write_plan.h"
#include "checkpoint/transfer/rank_file.h"
#include "checkpoint/transfer/shared_files.h"

namespace intarsia::checkpoint {

/// A part of a saved tensor, and the contiguous memory that it is read into.
struct Wanted {
  std::size_t tensor = 0;  ///< index in the manifest
  Part part;
  std::span<std::byte> into;
};

struct ReadOptions {
  /// Every chunk is compared with its hash. Off: only the bytes that are wanted are read.
  bool verify = true;
  /// At which rank's file to begin, so that not all readers are at the same one.
  std::int64_t first = 0;
};

/// The files of a step that was saved, in any form.
class StepFiles {
 public:
  /// REQUIRES: `manifest` stays.
  StepFiles(Files& files, std::string folder, const Manifest& manifest);
  /// What a rank wrote. Without hashes where it has none, or they are not wanted.
  RankFile open(const SavedFile& saved, bool verify) const;
  const WritePlan& plan() const { return plan_; }
  /// Where the files are.
  const std::string& folder() const { return folder_; }
  /// Those of the hf form; null in others.
  const SharedFiles* shared() const { return shared_ ? &*shared_ : nullptr; }

 private:
  Files& files_;
  std::string folder_;
  const Manifest& manifest_;
  WritePlan plan_;
  std::optional<SharedFiles> shared_;
};

/// Reads them from a step's folder. Every byte is written exactly once; where something is missing
/// or damaged, a FileError names the file, the tensor and the bytes, and the memory holds anything.
/// Needs a few chunks of memory, however much is read.
void read_parts(Files& files, const std::string& folder, const Manifest& manifest,
                std::span<const Wanted> wanted, const ReadOptions& options = {});

}  // namespace intarsia::checkpoint
