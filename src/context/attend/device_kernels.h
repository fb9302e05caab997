// The attention ops of accelerators. Nobody here has run them, so each is compared with the one
// that is composed of other ops before it is used.
#pragma once

#include <cstdint>

#include "intarsia/attention.h"

namespace intarsia::context {

/// torch's memory-efficient attention for CUDA. Knows masks and slopes, but no dropout.
AttentionKernel efficient_kernel();

/// Whether a kernel gives what another gives, output, logsumexp and gradients, up to the rounding
/// of the dtype: on small blocks, all seen, causal and with a mask. False if it throws.
bool agrees(const AttentionKernel& kernel, const AttentionKernel& with, at::Device device,
            at::ScalarType dtype, std::int64_t head_size, std::int64_t value_size);

/// Whether efficient_kernel agrees with another one: tried once in a process for each device, dtype
/// and sizes.
bool efficient_kernel_agrees(const AttentionKernel& with, at::Device device, at::ScalarType dtype,
                             std::int64_t head_size, std::int64_t value_size);

}  // namespace intarsia::context
