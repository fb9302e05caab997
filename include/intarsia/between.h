// Between meshes: from training to inference, or to another number of machines.
#pragma once

#include <cstdint>
#include <span>

#include "intarsia/layout.h"
#include "intarsia/plan.h"

namespace intarsia {

/// What moving a tensor from a layout to one on another mesh sends, counted exactly: only what a
/// rank of the new mesh does not hold already. REQUIRES: neither layout has terms.
Traffic traffic_between(const Layout& from, const Layout& to, std::span<const std::int64_t> shape,
                        std::int64_t element_size);

/// The mesh of `to` with its ranks in the order in which the least has to be sent: each rank takes
/// the place whose piece it holds most of. The same mesh where the order does not matter.
/// Up to 1,024 ranks; REQUIRES: neither layout has terms.
Mesh relabelled(const Layout& from, const Layout& to, std::span<const std::int64_t> shape);

/// The coordinate in `from` of the rank whose replicas serve the rank at `place` of the new mesh:
/// along axes that cut nothing. A rank that is in the old mesh is served by its own.
Coordinate serving_replica(const Layout& from, const Mesh& to, std::int64_t place);

}  // namespace intarsia
