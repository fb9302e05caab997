// A c10d backend whose calls the guard compares.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "world/guard/guard.h"

namespace intarsia {

/// The same backend, whose collectives are noted and compared before they are made. While someone
/// waits for one, or has its future, the other ranks are looked at; what the guard finds ends the
/// wait. Messages between two ranks are compared when they begin, and again when they were waited
/// for; of those who receive from anybody no messages are compared any more. REQUIRES: waiting for
/// its collectives may end before they do, and begin again.
c10::intrusive_ptr<c10d::Backend> guarded_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                  std::shared_ptr<GuardedGroup> group);

}  // namespace intarsia
