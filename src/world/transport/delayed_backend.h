// A c10d backend that is as slow as one likes: for tests, and to see what a slower wire would cost.
#pragma once

#include "intarsia/rendezvous.h"
#include "intarsia/world.h"
#include "world/transport/backends.h"

namespace intarsia {

/// Wraps a backend, so that no collective is done before `latency + bytes / bytes_per_second` have
/// passed since the wire was free for it. The calls of one group follow each other on its wire,
/// which sends and receives at the same time. What a call is counted with is the larger of what
/// this rank sends to others and gets from them. Waiting sleeps, and costs no processor time. A
/// call that takes longer by itself is not delayed further.
Backend delay_backend(Backend inner, const WireDelay& delay);

/// What the variable INTARSIA_WIRE_DELAY says, as `latency_us,bytes_per_second`; unset where the
/// variable is not set. ValueError where it cannot be read.
std::optional<WireDelay> read_wire_delay(const Environment& environment);

}  // namespace intarsia
