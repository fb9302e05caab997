// Descriptions of masks inside of tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "intarsia/attention.h"

namespace intarsia::context {

/// What a tensor of mask_tensor begins with.
inline constexpr std::string_view kDescribed = "intarsia:";

/// What mask_tensor wrote; nothing for any other tensor.
std::optional<DescribedAttention> description_in(const at::Tensor& mask);

}  // namespace intarsia::context
