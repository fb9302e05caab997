// Which steps of a folder stay, and what is removed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/files/files.h"

namespace intarsia::checkpoint {

/// Removes all but the `keep` newest steps that can be read, and gives those removed. A step whose
/// manifest is damaged neither counts nor is removed: someone may still want to look at it. A step
/// is renamed before its files go, so that it is complete or not there. REQUIRES: keep > 0.
std::vector<std::int64_t> remove_old_steps(Files& files, const std::string& root,
                                           std::int64_t keep);

/// Removes what saves and removals have left that did not come to their end, and gives the names.
/// REQUIRES: nobody saves in this folder now.
std::vector<std::string> remove_unfinished(Files& files, const std::string& root);

}  // namespace intarsia::checkpoint
