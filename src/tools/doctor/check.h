// Check: one finding of `intarsia doctor`, and how a list of them is shown.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia::tools {

enum class Status : std::uint8_t { ok, warn, fail };

/// `ok`, `warn`, `fail`.
std::string_view to_text(Status status);

struct Check {
  std::string name;
  Status status = Status::ok;
  /// What was found, with the values.
  std::string found;
  /// What the user can do about it; empty when all is well.
  std::string what_to_do;
};

Check ok(std::string name, std::string found);
Check warn(std::string name, std::string found, std::string what_to_do);
Check fail(std::string name, std::string found, std::string what_to_do);

bool any_failed(const std::vector<Check>& checks);

/// One line per check, a second one with what to do, and `N ok, N warnings, N failed`.
std::string to_text(const std::vector<Check>& checks);

/// {"checks": [{"name", "status", "found", "what_to_do"}], "summary": {"ok", "warn", "fail"}};
/// `what_to_do` is left out where all is well.
nlohmann::ordered_json to_json(const std::vector<Check>& checks);

}  // namespace intarsia::tools
