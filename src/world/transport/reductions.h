// Reductions done here rather than by a backend: partial values are exchanged and combined in the
// order of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "intarsia/placement.h"

namespace intarsia {

/// Refuses what is no reduction, or has no exact value for the dtype.
void check_reduction(std::string_view where, const Placement& how, at::ScalarType type);

/// Sums and averages: what a backend may do as a sum, of complex numbers as one of reals.
inline bool is_linear(const Placement& how) {
  return how.reduction() == Reduction::sum || how.reduction() == Reduction::avg;
}

/// A partial value as it is combined: for a norm of order p, |x|^p.
at::Tensor to_partial(const at::Tensor& x, const Placement& how);

/// Combines `next` into `value`. An average or a norm adds; what remains to do is done once, at the
/// end.
void combine_into(at::Tensor& value, const at::Tensor& next, Reduction how);

/// Combines `partials`, in their order, in a dtype wide enough not to lose what halves hold.
at::Tensor combine(at::TensorList partials, const Placement& how);

/// The value of `n` combined partial values, in the dtype of the input.
at::Tensor from_partials(at::Tensor combined, const Placement& how, std::int64_t n,
                         at::ScalarType type);

}  // namespace intarsia
