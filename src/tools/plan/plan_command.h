// `intarsia plan`: how a tensor gets from one layout to another, and what it costs.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace intarsia::tools {

/// Declares the arguments; returns what runs the command and gives the exit code: 0 when there is a
/// plan, 1 when there is none, 2 when the arguments make no sense.
std::function<int()> add_plan(CLI::App& command);

}  // namespace intarsia::tools
