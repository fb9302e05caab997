// Writing a checkpoint anew, in another number of files.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/inspect/export.h"

namespace intarsia::checkpoint {

/// Writes the step of a manifest below `root`, in so many files that share its bytes evenly, as
/// ranks that all hold everything would. Values stay. FileError where the step is there already.
/// Needs the memory of the largest part that a file has of a tensor.
void reshard(Files& files, const std::string& from, const Manifest& manifest,
             const std::string& root, std::int64_t count, const Progress& progress);

}  // namespace intarsia::checkpoint
