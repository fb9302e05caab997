// What a thread does around the time that it waits for other ranks.
#pragma once

namespace intarsia {

/// For interpreters. A lock that this thread may hold must not be kept while it waits, since
/// threads of a backend may want it too. `leave` is called before a wait, and what it returns is
/// passed to `come_back` afterwards. The Python package releases the interpreter's lock so.
struct AroundWaits {
  void* (*leave)() = nullptr;
  void (*come_back)(void* left) = nullptr;
};

/// THREADS: once, before the first world is made.
void set_around_waits(AroundWaits functions);

}  // namespace intarsia
