// The programs that `intarsia` runs for what needs libtorch.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia::tools {

/// Where such a program may be: beside this one, or where it is installed.
std::vector<std::filesystem::path> companion_places(std::string_view program);

/// The first of these places that exists.
std::optional<std::filesystem::path> first_of(const std::vector<std::filesystem::path>& places);

/// `a or b`.
std::string text_of(const std::vector<std::filesystem::path>& places);

/// Replaces this process by such a program, with these arguments. Returns only where that failed,
/// with the exit code; `role` says in the message what the program does.
int become(std::string_view program, std::string_view role, std::vector<std::string> words);

}  // namespace intarsia::tools
