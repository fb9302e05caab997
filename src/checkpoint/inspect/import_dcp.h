// Turning a folder of torch.distributed.checkpoint into a checkpoint of ours.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/files/files.h"
#include "checkpoint/inspect/export.h"

namespace intarsia::checkpoint {

/// Writes a step below `root`, which must be there, with the same tensors and, if `with_values`,
/// the other values under their names. Holds one tensor at a time. FileError for what is not as
/// PyTorch writes it: see read_dcp_folder.
void import_dcp(Files& files, const std::string& folder, const std::string& root, std::int64_t step,
                bool with_values, const Progress& progress);

}  // namespace intarsia::checkpoint
