// Folders of safetensors files as Hugging Face has them: `model.safetensors`, or several files and
// `model.safetensors.index.json`, which says in which of them each tensor is.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace intarsia::checkpoint {

inline constexpr std::string_view kHfIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kHfSingleName = "model.safetensors";

/// The file of each tensor. FileError that names the file unless it is an index, or where a file's
/// name would lead out of the folder.
std::map<std::string, std::string> parse_hf_index(std::string_view file, std::string_view text);

/// The index of files with so many bytes of tensors.
std::string hf_index_text(const std::map<std::string, std::string>& file_of_tensor,
                          std::uint64_t total_bytes);

/// `model-00002-of-00003.safetensors`; of one file, `model.safetensors`.
std::string hf_file_name(std::size_t number, std::size_t count);

}  // namespace intarsia::checkpoint
