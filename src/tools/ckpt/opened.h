// Finding the checkpoint that a path names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/inspect/diff.h"

namespace intarsia::tools {

/// `path` is the folder of a run, of which `step` or else the newest is taken; the folder of a
/// step; or one of Hugging Face. FileError that says what was looked for.
checkpoint::Opened open_checkpoint(const std::string& path, std::optional<std::int64_t> step);

/// `1.5 GiB`, `12 bytes`.
std::string bytes_text(std::uint64_t bytes);

}  // namespace intarsia::tools
