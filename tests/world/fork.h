// What happens in a fork of the process that runs a test.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace intarsia::testing {

/// What `body` returns in a fork of this process, which ends there: 0 to 255. -1: the fork died, or
/// `body` threw.
inline int in_fork(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      ::_exit(body());
    } catch (...) {
      ::abort();
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// The message of the E that `call` throws; empty when it throws none. For forks, where a failed
/// expectation would be lost.
template <class E>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace intarsia::testing
