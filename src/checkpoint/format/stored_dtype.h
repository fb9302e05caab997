// How element types are called and stored in safetensors files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "intarsia/tensor_type.h"

namespace intarsia::checkpoint {

/// The type of a file's tensor. safetensors knows no complex numbers of two halves or two doubles:
/// such a tensor is one of the parts, with a last dimension of 2.
struct StoredDType {
  std::string_view name;  ///< such as `BF16`
  bool pairs = false;
};

StoredDType stored_as(DType dtype);
/// nullopt for a name that we do not read.
std::optional<DType> dtype_of_stored(std::string_view name);
/// `f32[2, 3]`, for messages.
std::string sizes_text(DType dtype, const Shape& shape);
/// The bytes of an element.
std::int64_t element_bytes(DType dtype);
/// The bytes of a tensor. REQUIRES: a shape that check_shape allows.
std::uint64_t bytes_of(DType dtype, const Shape& shape);

}  // namespace intarsia::checkpoint
