#include "tools/companion.h"

#include <algorithm>

#include "base/text.h"

namespace intarsia::tools {

namespace fs = std::filesystem;

std::vector<fs::path> companion_places(std::string_view program) {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  return {folder / program, (folder / INTARSIA_PROBE_FOLDER / program).lexically_normal()};
}

std::optional<fs::path> first_of(const std::vector<fs::path>& places) {
  std::error_code error;
  const auto found =
      std::ranges::find_if(places, [&](const fs::path& place) { return fs::exists(place, error); });
  return found == places.end() ? std::nullopt : std::optional(*found);
}

std::string text_of(const std::vector<fs::path>& places) {
  std::vector<std::string> names;
  for (const fs::path& place : places) names.push_back(place.string());
  return join(names, " or ");
}

}  // namespace intarsia::tools
