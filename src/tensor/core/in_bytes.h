// Tensors one after the other in a buffer of bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "layout/chunk.h"
#include "tensor/core/spec.h"

namespace intarsia {

/// Where the next tensor of a buffer may begin: any dtype fits there.
inline std::int64_t aligned(std::int64_t bytes) {
  constexpr std::int64_t kAlignment = 64;
  return ceil_div(bytes, kAlignment) * kAlignment;
}

/// The tensor that begins there. REQUIRES: below autograd, where it is no view of the buffer.
inline at::Tensor typed(const at::Tensor& bytes, std::int64_t offset, const Shape& sizes,
                        at::ScalarType dtype) {
  const std::int64_t length =
      c10::multiply_integers(to_ref(sizes)) * static_cast<std::int64_t>(c10::elementSize(dtype));
  return bytes.narrow(0, offset, length).view(dtype).view(to_ref(sizes));
}

}  // namespace intarsia
