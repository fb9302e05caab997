// How many elements two pieces share.
#pragma once

#include <cstdint>

#include "intarsia/boxes.h"

namespace intarsia {

std::int64_t shared_elements(const Boxes& a, const Boxes& b);

}  // namespace intarsia
