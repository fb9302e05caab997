// One program for every kind of world: all collectives, dtypes and uneven sizes, each checked
// against a computation that this rank does alone.
#pragma once

#include <cstdint>

#include "intarsia/world.h"

namespace intarsia::testing {

/// The number of results compared. Throws std::runtime_error on the first that is wrong. `quick`:
/// five dtypes, one of each way in which they are reduced.
std::int64_t check_collectives(World& world, bool quick = false);

}  // namespace intarsia::testing
