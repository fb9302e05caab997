// ATen's element types and ours.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "intarsia/tensor_type.h"

namespace intarsia {

/// Unset for types that no distributed tensor has (quantised and sub-byte ones).
inline std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::ScalarType::Bool:
      return DType::b1;
    case at::ScalarType::Byte:
      return DType::u8;
    case at::ScalarType::UInt16:
      return DType::u16;
    case at::ScalarType::UInt32:
      return DType::u32;
    case at::ScalarType::UInt64:
      return DType::u64;
    case at::ScalarType::Char:
      return DType::i8;
    case at::ScalarType::Short:
      return DType::i16;
    case at::ScalarType::Int:
      return DType::i32;
    case at::ScalarType::Long:
      return DType::i64;
    case at::ScalarType::Float8_e4m3fn:
      return DType::f8e4m3;
    case at::ScalarType::Float8_e5m2:
      return DType::f8e5m2;
    case at::ScalarType::Half:
      return DType::f16;
    case at::ScalarType::BFloat16:
      return DType::bf16;
    case at::ScalarType::Float:
      return DType::f32;
    case at::ScalarType::Double:
      return DType::f64;
    case at::ScalarType::ComplexHalf:
      return DType::c32;
    case at::ScalarType::ComplexFloat:
      return DType::c64;
    case at::ScalarType::ComplexDouble:
      return DType::c128;
    default:
      return std::nullopt;
  }
}

/// ATen has one for each of ours.
inline at::ScalarType scalar_type(DType dtype) {
  // Both enumerations are small, and dtype_of is the one place that pairs them.
  int i = 0;
  while (dtype_of(static_cast<at::ScalarType>(i)) != dtype) ++i;
  return static_cast<at::ScalarType>(i);
}

}  // namespace intarsia
