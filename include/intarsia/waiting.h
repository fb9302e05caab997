// What a thread does around the time that it waits for other ranks.
#pragma once

namespace intarsia {

/// For interpreters: a lock that this thread may hold must not be kept while it waits, since
/// threads of a backend may want it too. `leave` is called before, and what it gave is handed to
/// `come_back` after. The Python package gives back the interpreter's lock so.
struct AroundWaits {
  void* (*leave)() = nullptr;
  void (*come_back)(void* left) = nullptr;
};

/// THREADS: once, before the first world is made.
void set_around_waits(AroundWaits functions);

}  // namespace intarsia
