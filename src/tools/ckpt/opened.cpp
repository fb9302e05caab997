#include "tools/ckpt/opened.h"

#include <array>
#include <cstdio>

#include "base/text.h"
#include "checkpoint/files/files.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/store/all_files.h"
#include "checkpoint/transfer/hugging_face_folder.h"
#include "intarsia/error.h"

namespace intarsia::tools {

using checkpoint::Files;
using checkpoint::join_path;
using checkpoint::Opened;

Opened open_checkpoint(const std::string& path, std::optional<std::int64_t> step) {
  Files& files = checkpoint::all_files();
  if (!files.exists(path)) fail<FileError>("ckpt", path, ": no such folder");
  if (!step && files.exists(join_path(path, checkpoint::kManifestName))) {
    return {path, checkpoint::read_manifest(files, path)};
  }
  const auto steps = checkpoint::steps_in(files, path);
  if (step || !steps.empty()) {
    const std::string folder =
        checkpoint::folder_of_step(files, path, step.value_or(steps.empty() ? 0 : steps.back()));
    return {folder, checkpoint::read_manifest(files, folder)};
  }
  try {
    return {path, checkpoint::read_hf_folder(files, path)};
  } catch (const FileError& error) {
    fail<FileError>("ckpt", path,
                    ": no steps, no manifest, and no folder of Hugging Face: ", error.what());
  }
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array kUnits{"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  constexpr double kStep = 1024;
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= kStep && unit + 1 < kUnits.size()) {
    value /= kStep;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace intarsia::tools
