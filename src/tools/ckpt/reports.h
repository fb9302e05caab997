// What `intarsia ckpt` prints about checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/format/json.h"
#include "checkpoint/inspect/diff.h"

namespace intarsia::tools {

/// The steps of a folder, with their sizes; one that cannot be read says why.
checkpoint::Json list_report(const std::string& folder);
std::string list_text(const checkpoint::Json& report);

/// What a checkpoint holds. `writers`: also which rank wrote which part of each tensor.
checkpoint::Json show_report(const checkpoint::Opened& opened, const std::string& pattern,
                             bool writers);
std::string show_text(const checkpoint::Json& report);

checkpoint::Json diff_report(const std::vector<checkpoint::Difference>& differences);
std::string diff_text(const checkpoint::Json& report);

}  // namespace intarsia::tools
