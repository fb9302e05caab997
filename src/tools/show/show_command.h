// `intarsia show`: which rank holds what of a tensor.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace intarsia::tools {

/// Declares the arguments of `intarsia show`; what it returns runs the command.
std::function<int()> add_show(CLI::App& command);

}  // namespace intarsia::tools
