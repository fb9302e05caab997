// Views whose elements had to be moved: writes to them go on to their base.
#pragma once

#include <memory>
#include <string_view>

#include "tensor/core/impl.h"

namespace intarsia {

/// For a view whose elements had to be moved: `moved` holds all elements of `base`.
std::shared_ptr<Extra::MovedCopy> moved_copy_of(DistributedImpl& base, const at::Tensor& moved);

/// After a write to a view whose elements had been moved: brings them to its base.
void write_through(DistributedImpl& view, std::string_view op);

}  // namespace intarsia
