#pragma once

#include <cstdint>

#include "intarsia/tensor_type.h"

namespace intarsia {

/// The bytes of an element.
std::int64_t element_size(DType dtype);

}  // namespace intarsia
