// `intarsia schedule`: makes, checks, times and searches schedules of pipelines.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace intarsia::tools {

/// Declares the arguments of `intarsia schedule`; what it returns runs the command.
std::function<int()> add_schedule(CLI::App& command);

}  // namespace intarsia::tools
