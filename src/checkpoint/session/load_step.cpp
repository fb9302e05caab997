#include "checkpoint/session/load_step.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 30;

std::optional<std::int64_t> step_of(const std::string& name) {
  constexpr std::string_view kBegin = "step-";
  if (!name.starts_with(kBegin)) return std::nullopt;
  std::int64_t step = 0;
  std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), step);
  if (step_name(step) != name) return std::nullopt;
  return step;
}

}  // namespace

std::vector<std::int64_t> steps_in(Files& files, const std::string& root) {
  std::vector<std::int64_t> out;
  for (const std::string& name : files.list(root)) {
    const auto step = step_of(name);
    if (!step) continue;
    const bool is_complete =
        files.renames(root) || files.exists(join_path(join_path(root, name), kManifestName));
    if (is_complete) out.push_back(*step);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string folder_of_step(Files& files, const std::string& root, std::int64_t step) {
  const auto steps = steps_in(files, root);
  if (std::find(steps.begin(), steps.end(), step) == steps.end()) {
    fail<FileError>("checkpoint", root, ": no step ", step, "; there ",
                    steps.empty() ? "are none" : concat("are ", join(steps, ", ")));
  }
  return join_path(root, step_name(step));
}

Manifest read_manifest(Files& files, const std::string& folder) {
  const std::string path = join_path(folder, kManifestName);
  return Manifest::parse(path, read_text(files, path, kMostManifestBytes));
}

}  // namespace intarsia::checkpoint
