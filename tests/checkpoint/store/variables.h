// Variables: those of the environment that a test sets, as they were afterwards.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace intarsia::testing {

class Variables {
 public:
  /// An empty value: not set.
  explicit Variables(const std::map<std::string, std::string>& values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name.c_str());
      before_[name] = old == nullptr ? std::nullopt : std::optional<std::string>(old);
      set(name, value.empty() ? std::nullopt : std::optional(value));
    }
  }
  ~Variables() {
    for (const auto& [name, value] : before_) set(name, value);
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace intarsia::testing
