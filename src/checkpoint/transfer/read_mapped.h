// Reading tensors that a NameMap makes of saved ones.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/name_map.h"
#include "checkpoint/plan/part.h"
#include "checkpoint/transfer/read_parts.h"

namespace intarsia::checkpoint {

/// Reads a part of such a tensor into contiguous memory. Needs some 32 MiB beside it, or the bytes
/// of a row. Errors are those of read_parts.
void read_mapped(Files& files, const std::string& folder, const Manifest& manifest,
                 const MappedTensor& tensor, const Part& part, std::span<std::byte> into,
                 const ReadOptions& options = {});

}  // namespace intarsia::checkpoint
