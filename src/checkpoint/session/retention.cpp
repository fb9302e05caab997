#include "checkpoint/session/retention.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "checkpoint/session/load_step.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

bool can_be_read(Files& files, const std::string& folder) {
  try {
    read_manifest(files, folder);
    return true;
  } catch (const FileError&) {
    return false;
  }
}

/// In this order: a step that is not complete any more is no step.
void remove_step(Files& files, const std::string& root, std::int64_t step) {
  const std::string folder = join_path(root, step_name(step));
  if (!files.renames(root)) {
    files.remove(join_path(folder, kManifestName));
    return files.remove(folder);
  }
  const std::string gone = join_path(root, concat('.', step_name(step), ".removed"));
  files.rename(folder, gone);
  files.sync_folder(root);
  files.remove(gone);
}

/// In object stores: files of saves that no manifest names.
std::vector<std::string> remove_unnamed(Files& files, const std::string& root) {
  files.sweep(root);
  std::vector<std::string> removed;
  for (const std::string& name : files.list(root)) {
    if (!name.starts_with("step-")) continue;
    const std::string folder = join_path(root, name);
    const bool is_step = files.exists(join_path(folder, kManifestName));
    if (is_step && !can_be_read(files, folder)) continue;
    const std::string kept = is_step ? read_manifest(files, folder).data_folder : std::string();
    for (const std::string& inside : files.list(folder)) {
      if (inside == kept || inside == kManifestName) continue;
      files.remove(join_path(folder, inside));
      removed.push_back(concat(name, '/', inside));
    }
  }
  return removed;
}

}  // namespace

std::vector<std::int64_t> remove_old_steps(Files& files, const std::string& root,
                                           std::int64_t keep) {
  std::vector<std::int64_t> steps = steps_in(files, root);
  if (std::cmp_less_equal(steps.size(), keep)) return {};
  std::reverse(steps.begin(), steps.end());
  std::vector<std::int64_t> removed;
  std::int64_t good = 0;
  for (const std::int64_t step : steps) {
    const std::string folder = join_path(root, step_name(step));
    if (!can_be_read(files, folder)) continue;
    if (++good <= keep) continue;
    remove_step(files, root, step);
    removed.push_back(step);
  }
  return removed;
}

std::vector<std::string> remove_unfinished(Files& files, const std::string& root) {
  if (!files.renames(root)) return remove_unnamed(files, root);
  std::vector<std::string> removed;
  for (const std::string& name : files.list(root)) {
    const bool is_ours = name.starts_with(".step-") &&
                         (name.find(".saving-") != name.npos || name.ends_with(".removed"));
    if (!is_ours) continue;
    files.remove(join_path(root, name));
    removed.push_back(name);
  }
  return removed;
}

}  // namespace intarsia::checkpoint
