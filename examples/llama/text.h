// Text to learn: sentences of a small grammar, made from a seed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace llama {

struct Batch {
  at::Tensor tokens;   ///< [rows, length] bytes
  at::Tensor targets;  ///< the byte that follows each
};

/// The global batch of a step. The same on every rank.
Batch make_batch(std::int64_t step, std::int64_t rows, std::int64_t length, std::uint64_t seed);

}  // namespace llama
