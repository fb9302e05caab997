// Parts of tensors, one for each rank of a group, and how the ranks exchange them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "intarsia/placement.h"
#include "intarsia/world.h"
#include "world/collectives/wire.h"

namespace intarsia {

/// A contiguous buffer as wires take it, whatever it holds: the same memory, flat, as bytes.
at::Tensor as_bytes(const at::Tensor& buffer);

/// The parts of a tensor, one after the other in one flat buffer, and how many elements each has.
struct Parts {
  at::Tensor flat;
  Counts counts;
};

/// Splits a tensor along a dimension. REQUIRES: it is contiguous.
Parts parts_along(const at::Tensor& t, std::int64_t dim, const Counts& lengths);

/// Sends each rank of the group its part of `in`, and fills `out` with the parts that they send
/// here. Elements of any dtype, the same in both.
Works exchange_parts(Wire& wire, const Parts& out, const Parts& in, at::ScalarType dtype,
                     CallSite site);

/// The parts of all ranks' partial values, exchanged. `combine` gives this rank's part of the
/// combined value, flat, in the accumulator's dtype.
struct ScatteredPartials {
  Works works;
  std::vector<at::Tensor> buffers;
  std::function<at::Tensor()> combine;
};

ScatteredPartials scatter_partials(const Comm& comm, Wire& wire, const Parts& parts,
                                   const Placement& how, at::ScalarType dtype, CallSite site);

}  // namespace intarsia
