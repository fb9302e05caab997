// docs/generated/ops.md: the ops and their rules.
#pragma once

#include <filesystem>
#include <string>

namespace intarsia::tools {

/// The page. `missing`: what `intarsia ops check all --update-missing` wrote; empty: without it.
std::string ops_page(const std::filesystem::path& missing);

}  // namespace intarsia::tools
