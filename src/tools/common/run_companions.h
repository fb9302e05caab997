// `intarsia ops` and `intarsia calibrate`: hand over to programs that load libtorch.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace intarsia::tools {

/// Both take all arguments as they are, and return what replaces this process by the other program.
std::function<int()> add_calibrate(CLI::App& command);
std::function<int()> add_ops(CLI::App& command);

}  // namespace intarsia::tools
