// Folders of safetensors files as Hugging Face has them: `model.safetensors`, or several files and
// `model.safetensors.index.json`, which says in which of them each tensor is.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/safetensors.h"

namespace intarsia::checkpoint {

inline constexpr std::string_view kHfIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kHfSingleName = "model.safetensors";

/// The file of each tensor. FileError that names the file unless it is an index, or where a file's
/// name would lead out of the folder.
std::map<std::string, std::string> parse_hf_index(std::string_view file, std::string_view text);

/// The index of such files.
std::string hf_index_text(const std::vector<FileHeader>& files);

/// Puts tensors into files, in their order, each of at most so many bytes unless one tensor has
/// more; at least one file.
std::vector<FileHeader> hf_files(std::vector<FileTensor> tensors, std::uint64_t file_bytes);

/// `model-00002-of-00003.safetensors`; of one file, `model.safetensors`.
std::string hf_file_name(std::size_t number, std::size_t count);

}  // namespace intarsia::checkpoint
