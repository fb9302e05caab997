// TensorType: dtype, sizes and layout of a tensor, and their short text form.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "intarsia/layout.h"

namespace intarsia {

/// Element types, by the names used in text forms.
enum class DType : std::uint8_t {
  b1,  ///< bool
  u8,
  u16,
  u32,
  u64,
  i8,
  i16,
  i32,
  i64,
  f8e4m3,
  f8e5m2,
  f16,
  bf16,
  f32,
  f64,
  c32,  ///< complex of two f16
  c64,
  c128,
};

std::string_view to_text(DType dtype);
/// nullopt for an unknown name.
std::optional<DType> parse_dtype(std::string_view text);

/// Whether partial values of this dtype can be reduced so, and the result is exactly the value.
/// False for avg of integers, and/or/xor of floats, min or max of complex numbers, and norms of
/// anything but floats.
bool is_exact(Reduction reduction, DType dtype);

/// What a distributed tensor is, without its values.
///
/// Text form: `f32[1024@dp, 4096@tp]`: each size with the axes that shard it, in the order in which
/// they do (`8@tp@dp`), blocks as `8@dp:4`, and partial axes at the end: `f32[8, 4@dp] P(sum)@tp`.
/// The mesh is not part of the text: `parse` is told to which mesh the names of axes belong.
struct TensorType {
  DType dtype = DType::f32;
  Shape shape;
  Layout layout;

  static TensorType parse(std::string_view text, const Mesh& mesh);
  std::string to_string() const;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

/// Refuses a type that no tensor can have: one that shards a dimension that is not there, or has a
/// partial value whose reduction is not exact for the dtype.
void check(const TensorType& type);

}  // namespace intarsia
