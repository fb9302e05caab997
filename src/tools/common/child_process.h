// Runs a program as a child process and collects what it prints.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace intarsia::tools {

struct ChildResult {
  std::string out;  ///< standard output
  std::string err;  ///< standard error
  /// How it ended when not with exit code 0: `exited with code 127`, `was ended by signal 11`,
  /// `did not finish within 30 s`, `could not be started: ...`. Empty after success.
  std::string problem;
};

/// Runs `program` in the environment of this process. A child that has not finished after `limit`
/// is killed.
ChildResult run_child(const std::filesystem::path& program, std::vector<std::string> arguments,
                      std::chrono::seconds limit);

}  // namespace intarsia::tools
