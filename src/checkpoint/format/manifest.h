// The manifest of a step: what was saved, by whom, and in which layout. It is written last, and
// by it a folder is a checkpoint. docs/formats.md shows one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/json.h"
#include "intarsia/tensor_type.h"

namespace intarsia::checkpoint {

/// A tensor and how it was laid out when it was saved.
struct SavedTensor {
  std::string name;
  TensorType type;
  friend bool operator==(const SavedTensor&, const SavedTensor&) = default;
};

/// A rank that wrote a file. Which tensors are in it follows from the layouts: see WritePlan.
struct SavedFile {
  std::int64_t rank = 0;
  std::uint64_t bytes = 0;
  /// The hash of the file with its hashes.
  std::uint64_t hashes = 0;
  friend bool operator==(const SavedFile&, const SavedFile&) = default;
};

struct Manifest {
  std::int64_t step = 0;
  /// The number of ranks that saved it.
  std::int64_t world = 1;
  /// In the order in which they were given: who writes what depends on it.
  std::vector<SavedTensor> tensors;
  /// By rank. A rank that had nothing to write has no file.
  std::vector<SavedFile> files;
  /// All that is not a tensor, by name.
  Json values = Json::object();
  /// The form of the files. Unset, native: each rank wrote a file of its own. Set, hf: ranks wrote
  /// together into files as Hugging Face has them, of so many bytes at most (see SharedFiles).
  std::optional<std::uint64_t> hf_file_bytes = {};
  /// The folder with the files, below that of the step: in object stores, where several saves of a
  /// step may have left files. Empty: beside the manifest.
  std::string data_folder = {};
  /// What the files are called where that does not follow from their ranks, as in folders of
  /// Hugging Face; those have no hashes. Not in the text.
  std::vector<std::string> file_names = {};

  /// The number of each tensor, by name.
  std::map<std::string_view, std::size_t> places() const;

  std::string to_text() const;
  /// FileError that names the file, unless it is exactly what `to_text` gives: the last line holds
  /// the hash of all before it.
  static Manifest parse(std::string_view file, std::string_view text);
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// The lines of a manifest's tensors. There may be very many, so they are made once.
std::string tensor_lines(std::span<const SavedTensor> tensors);
/// What `Manifest::to_text` gives, where these lines are made already.
std::string manifest_text(const std::string& tensor_lines, std::int64_t step, std::int64_t world,
                          std::span<const SavedFile> files, const Json& values,
                          std::optional<std::uint64_t> hf_file_bytes,
                          const std::string& data_folder);

/// A number with zeros before it, so that names stand in the order of their numbers.
std::string padded(std::int64_t number, std::size_t digits);

/// The folder of a step: `step-00000100`.
std::string step_name(std::int64_t step);
/// The file of a rank: `00003-of-00008.safetensors`.
std::string data_file_name(std::int64_t rank, std::int64_t world);
/// The file with its hashes: `00003-of-00008.hashes`.
std::string hash_file_name(std::int64_t rank, std::int64_t world);
inline constexpr std::string_view kManifestName = "manifest.json";

}  // namespace intarsia::checkpoint
