// The strides that ATen would give the results of a call.
#pragma once

#include <optional>

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"

namespace intarsia {

/// The strides that the argument `memory_format` asks for, if it does.
std::optional<Shape> strides_by_argument(const Frame& frame, const Shape& sizes);

/// The strides of a result as ATen would make them. REQUIRES: `decision.in`.
Shape strides_of_result(const Frame& frame, const Decision& decision, const Rule& rule,
                        const Shape& sizes, std::size_t index);

}  // namespace intarsia
