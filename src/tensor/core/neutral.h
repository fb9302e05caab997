// Values that change nothing when they are combined with others.
#pragma once

#include <ATen/core/Tensor.h>

#include "intarsia/layout.h"

namespace intarsia {

/// The partial value of a rank other than the first, where the first has `t` as its own: reduced,
/// they give `t`.
at::Tensor neutral_partial(const at::Tensor& t, const Placement& partial);

/// A piece of these sizes that adds nothing to what other ranks have, on every partial axis of the
/// layout. Sizes without elements need no value.
at::Tensor neutral_piece(const Shape& sizes, const Layout& layout,
                         const at::TensorOptions& options);

}  // namespace intarsia
