// Files of any kind, by their paths.
#pragma once

#include <string>

#include "checkpoint/files/files.h"

namespace intarsia::checkpoint {

/// Whether a path is one of an object store: `s3://bucket/prefix`.
bool is_in_store(const std::string& path);

/// The file systems of this machine, and object stores.
Files& all_files();

}  // namespace intarsia::checkpoint
