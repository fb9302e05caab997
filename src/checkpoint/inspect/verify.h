// Reading a step from its first byte to its last, and telling all that is wrong with it.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/inspect/export.h"

namespace intarsia::checkpoint {

/// What a step's folder lacks, or has that is not as it was written; empty if nothing.
std::vector<std::string> verify_step(Files& files, const std::string& folder,
                                     const Progress& progress = {});

}  // namespace intarsia::checkpoint
