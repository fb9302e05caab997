// `intarsia ops`: hands over to the program `intarsia-ops`, which loads libtorch.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace intarsia::tools {

/// Takes all arguments as they are; returns what replaces this process by the other program.
std::function<int()> add_ops(CLI::App& command);

}  // namespace intarsia::tools
