// The header of a safetensors file: eight bytes with its length, a JSON object with the place of
// each tensor, then the tensors without holes. docs/formats.md shows one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/tensor_type.h"

namespace intarsia::checkpoint {

/// A tensor in a safetensors file. dtype and shape are those of the file: see stored_as.
struct FileTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  /// Where its bytes are, counted from the beginning of the file.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const FileTensor&, const FileTensor&) = default;
};

/// A tensor as a file holds it, without a place. ValueError for complex numbers of too many
/// dimensions.
FileTensor file_tensor(std::string name, DType dtype, const Shape& shape);

struct FileHeader {
  /// In the order of their bytes.
  std::vector<FileTensor> tensors;
  std::map<std::string, std::string> metadata;
  /// Where the first tensor begins: the length of what `header_text` gives.
  std::uint64_t data_begin = 0;
  /// The length of the file.
  std::uint64_t file_bytes = 0;
};

/// The longest header, as the safetensors library has it.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;
/// Data begins at a multiple of this, so that it can be written in aligned blocks.
inline constexpr std::uint64_t kDataAlignment = 4096;
/// The bytes before the JSON.
inline constexpr std::uint64_t kLengthBytes = 8;

/// Gives tensors their places, one after the other, and the file its length.
/// REQUIRES: `tensors` with name, dtype and shape. ValueError for a header that is too long, and
/// for a name that comes twice.
FileHeader place_tensors(std::vector<FileTensor> tensors,
                         std::map<std::string, std::string> metadata = {});

/// The bytes before the first tensor.
std::string header_text(const FileHeader& header);

/// How long the header is, with its eight bytes, by the first eight bytes of a file of that length.
/// FileError when there is no room for so much.
std::uint64_t header_bytes(std::string_view file, std::string_view first, std::uint64_t file_bytes);

/// Reads a header. FileError that names the file unless every byte of the file after it belongs to
/// exactly one tensor, and every tensor has the bytes that its shape needs.
FileHeader parse_header(std::string_view file, std::string_view header, std::uint64_t file_bytes);

}  // namespace intarsia::checkpoint
