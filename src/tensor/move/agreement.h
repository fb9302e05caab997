// Whether ranks hold the same values: hashes that they exchange.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "intarsia/ledger.h"
#include "intarsia/world.h"

namespace intarsia {

/// Of sizes, dtype and values: all of them in small tensors, a sample of about 64 KiB of large
/// ones; on accelerators, of sizes and dtype only.
std::uint64_t content_hash(const at::Tensor& t);
/// Of all values, wherever they are, with all NaNs alike, and zeros of both signs.
std::uint64_t value_hash(const at::Tensor& t);

/// All axes of the mesh as one group, whose members are in the order of its coordinates.
Comm all_of(World& world, const Mesh& mesh);

/// Everybody's values, by place in the group. REQUIRES: one member. COLLECTIVE: the group.
std::vector<at::Tensor> exchange(const Comm& comm, const std::vector<std::int64_t>& mine,
                                 at::Device device, const Call& call);

}  // namespace intarsia
