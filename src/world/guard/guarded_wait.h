// Waiting for a collective, and looking meanwhile at what the other ranks do.
#pragma once

#include <chrono>
#include <cstdint>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "world/guard/guard.h"

namespace intarsia {

/// Waits for a call that this rank made, at most for `limit`; 0: for ever. Throws what the work
/// throws, and GuardError as GuardedGroup::look does. REQUIRES: waiting for the work may end before
/// the call does, and begin again.
void wait_in_slices(c10d::Work& work, const GuardedGroup& group, std::uint64_t number,
                    std::chrono::milliseconds limit = kNoTimeout);

}  // namespace intarsia
