// Writing saved tensors as a folder that Hugging Face's tools read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/name_map.h"

namespace intarsia::checkpoint {

struct ExportOptions {
  /// Only tensors whose names begin so, and without it: `model.`.
  std::string prefix = {};
  /// Floating point tensors are converted. Unset: as they were saved.
  std::optional<DType> dtype = std::nullopt;
  /// A file with more bytes of tensors than this has one tensor.
  std::uint64_t file_bytes = std::uint64_t{5} << 30;
  /// How the names of others become ours; it is run backwards. Ours are those without the prefix.
  NameMap names = {};
  bool verify = true;
};

/// Called now and then with the bytes that are done, and all.
using Progress = std::function<void(std::uint64_t done, std::uint64_t all)>;

/// Writes `to`, a new folder: complete or not there. ValueError for a type that cannot be converted
/// to, where no name begins with the prefix, and where the names' map does not fit.
void export_hf(Files& files, const std::string& from, const Manifest& manifest,
               const std::string& to, const ExportOptions& options, const Progress& progress);

}  // namespace intarsia::checkpoint
