// `intarsia doctor`: whether this machine can run Intarsia jobs, and what to do if not.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace intarsia::tools {

/// Declares the arguments; returns what runs the command and gives the exit code: 0 when no check
/// failed, else 1.
std::function<int()> add_doctor(CLI::App& command);

}  // namespace intarsia::tools
