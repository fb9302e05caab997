// Finding the steps of a folder, and their manifests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"

namespace intarsia::checkpoint {

/// The steps that were saved in a folder, in ascending order. A folder that is being written, or
/// was left so, is none.
std::vector<std::int64_t> steps_in(Files& files, const std::string& root);

/// The folder of a step: FileError that lists the steps that are there unless it is one.
std::string folder_of_step(Files& files, const std::string& root, std::int64_t step);

/// The manifest of a step's folder.
Manifest read_manifest(Files& files, const std::string& folder);

}  // namespace intarsia::checkpoint
