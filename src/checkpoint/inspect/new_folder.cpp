#include "checkpoint/inspect/new_folder.h"

#include <utility>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

/// The folder above, `.` for a name alone, and the name.
std::pair<std::string, std::string> split(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == path.npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

std::string without_last_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

NewFolder::NewFolder(Files& files, std::string target)
    : files_(files), target_(without_last_slashes(std::move(target))) {
  if (files_.exists(target_)) fail<FileError>("checkpoint", target_, ": is there already");
  if (!files_.renames(target_)) {
    path_ = target_;
    return;
  }
  const auto [above, name] = split(target_);
  path_ = join_path(above, concat('.', name, ".unfinished"));
  if (files_.exists(path_)) files_.remove(path_);
  files_.make_folder(path_);
}

NewFolder::~NewFolder() {
  if (committed_) return;
  try {
    files_.remove(path_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): removed when it is written again
  }
}

void NewFolder::commit() {
  if (path_ == target_) {
    committed_ = true;
    return;
  }
  files_.sync_folder(path_);
  files_.rename(path_, target_);
  committed_ = true;
  files_.sync_folder(split(target_).first);
}

}  // namespace intarsia::checkpoint
