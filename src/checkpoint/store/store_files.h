// Object stores as Files: paths of the form `s3://bucket/prefix/name`.
#pragma once

#include <string>

#include "checkpoint/files/files.h"

namespace intarsia::checkpoint {

/// Nothing can be renamed, and each object is written by one rank, from its beginning to its end,
/// in parts that travel while the next one is filled.
/// UnsupportedError, with the path, where it was built without libcurl and OpenSSL.
Files& store_files(const std::string& path);

}  // namespace intarsia::checkpoint
