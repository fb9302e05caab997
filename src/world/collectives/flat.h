// Collectives on flat buffers that the caller owns: what plans are run by.
#pragma once

#include <functional>
#include <vector>

#include "intarsia/collectives.h"
#include "world/collectives/wire.h"

namespace intarsia::flat {

using Tensors = std::vector<at::Tensor>;

/// What collectives work on: values in memory as they are, row-major, outside autograd.
at::Tensor plain(const at::Tensor& t);

/// What is done, and by whom it was asked for. Buffers are contiguous, one per member, and live
/// until `finish` has run, which gives the results.
struct Exchange {
  Tensors in;
  Tensors out;
  std::function<Tensors()> finish;
};

/// Whether the group's backend itself reduces and scatters this better than an exchange does.
bool scatters_reduced(const Comm& comm, const Placement& how, at::ScalarType dtype);

/// `out` gets the buffers of all ranks of the group, one after the other. REQUIRES: all are equally
/// long.
Pending all_gather(const Comm& comm, Exchange exchange, CallSite site);

/// Each rank of the group gets its part of `in`; `out` gets the parts that others send here, in the
/// order of ranks. Counts are elements, one list per member.
Pending all_to_all(const Comm& comm, Exchange exchange, const std::vector<Counts>& in_counts,
                   const std::vector<Counts>& out_counts, CallSite site);

/// One way between two ranks: the member at `from` sends its buffer, the other one gets it in its
/// own. What is sent first arrives first. REQUIRES: a group of two, of which one member lives here;
/// buffers of equally many bytes.
Pending message(const Comm& comm, const at::Tensor& buffer, std::int64_t from, CallSite site);

/// The sum of the buffers of all ranks. Where the backend adds them itself, it is in the buffer.
/// REQUIRES: one member lives here.
Pending sum(const Comm& comm, const at::Tensor& buffer, CallSite site);

}  // namespace intarsia::flat
