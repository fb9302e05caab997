#include "tools/common/companion.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>

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

int become(std::string_view name, std::string_view role, std::vector<std::string> words) {
  const auto places = companion_places(name);
  const auto program = first_of(places);
  if (!program) {
    std::cerr << "intarsia: " << name << ", which " << role << ", is not at " << text_of(places)
              << "; install all of Intarsia, built with INTARSIA_TORCH=ON, and keep the programs "
                 "in their places\n";
    return 1;
  }
  words.insert(words.begin(), program->string());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(pointers[0], pointers.data());
  std::cerr << "intarsia: " << words[0] << " could not be started: " << std::strerror(errno)
            << '\n';
  return 1;
}

}  // namespace intarsia::tools
