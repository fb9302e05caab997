// Whether ranks that run a schedule would wait for each other for ever.
#pragma once

#include <string>

#include "intarsia/schedule.h"

namespace intarsia {

enum class Channels {
  one_for_each_direction,  ///< what a rank sends to another, in its order: what the runtime has
  one_for_each_pair,       ///< both directions in one order, as when two ranks share a communicator
};

/// How they would: with the circle of ranks, and what each waits for. Empty where they do not.
/// REQUIRES: each transfer is sent once and received once, on the right ranks.
std::string deadlock_of(const Schedule& schedule, Channels channels);

}  // namespace intarsia
