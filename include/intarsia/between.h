// Between meshes: from training to inference, or to another number of machines.
#pragma once

#include <cstdint>
#include <span>

#include "intarsia/layout.h"
#include "intarsia/plan.h"

namespace intarsia {

/// What is sent to bring a tensor to a layout on another mesh, counted exactly: only what a rank of
/// the new mesh does not hold already. REQUIRES: neither layout is partial.
Traffic traffic_between(const Layout& from, const Layout& to, std::span<const std::int64_t> shape,
                        std::int64_t element_size);

/// The mesh of `to` with its ranks in the order for which the least has to be sent: each rank takes
/// the place whose piece it holds most of. The same mesh where the order does not matter.
/// Up to 1,024 ranks. REQUIRES: neither layout is partial.
Mesh relabelled(const Layout& from, const Layout& to, std::span<const std::int64_t> shape);

/// Which replica sends to the rank at `place` of the new mesh: its coordinate in the mesh of
/// `from`, of which only indices along axes that shard nothing count. A rank that is in the old
/// mesh too takes from its own replica.
Coordinate serving_replica(const Layout& from, const Mesh& to, std::int64_t place);

}  // namespace intarsia
