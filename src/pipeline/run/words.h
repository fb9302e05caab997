// What errors and the ledger call a pipeline.
#pragma once

#include <string_view>

namespace intarsia::pipeline {

inline constexpr std::string_view kWhere = "Pipeline";
inline constexpr std::string_view kOp = "pipeline";

}  // namespace intarsia::pipeline
