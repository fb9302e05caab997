// What a thread does around the time that it waits for other ranks.
#pragma once

#include <string>

namespace intarsia {

/// For interpreters. A lock that this thread may hold must not be kept while it waits, since
/// threads of a backend may want it too. `leave` is called before a wait, and what it returns is
/// passed to `come_back` afterwards. The Python package releases the interpreter's lock so.
struct AroundWaits {
  void* (*leave)() = nullptr;
  void (*come_back)(void* left) = nullptr;
  /// The line of the user's program that this thread runs, such as `train.py:88 in step`; empty
  /// where there is none. Asked for only when something takes long or goes wrong.
  std::string (*line)() = nullptr;
};

/// THREADS: once, before the first world is made.
void set_around_waits(AroundWaits functions);

}  // namespace intarsia
