// Floating point numbers in other types, without torch.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "intarsia/tensor_type.h"

namespace intarsia::checkpoint {

/// Types that `convert` reads and makes: f64, f32, bf16, f16.
bool can_convert(DType dtype);

/// The numbers as `to`, rounded to the nearest, ties to even. REQUIRES: can_convert of both.
std::vector<std::byte> convert(std::span<const std::byte> numbers, DType from, DType to);

/// One number, widened. REQUIRES: can_convert.
double number_at(std::span<const std::byte> numbers, DType dtype, std::size_t index);

}  // namespace intarsia::checkpoint
