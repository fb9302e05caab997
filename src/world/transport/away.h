// Waiting for other ranks or for a backend's threads, without the interpreter's lock.
#pragma once

#include <string>

namespace intarsia {

/// While it lives, this thread holds no interpreter's lock (waiting.h). Stands around every call of
/// a backend, its end too: Gloo frees works under the mutex that calls wait for, and works hold
/// what Python made. Comes before our own mutexes, so that nobody waits for one of these with the
/// lock.
class Away {
 public:
  Away();
  ~Away();
  Away(const Away&) = delete;
  Away& operator=(const Away&) = delete;

 private:
  void* left_;
};

/// The line of the user's program that this thread runs; empty where that is not known. REQUIRES:
/// no mutex of ours is held, since this may wait for an interpreter's lock.
std::string current_line();

}  // namespace intarsia
