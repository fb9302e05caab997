// `intarsia ckpt`: looking at checkpoints, verifying, comparing and exporting them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace intarsia::tools {

std::function<int()> add_ckpt(CLI::App& command);

}  // namespace intarsia::tools
