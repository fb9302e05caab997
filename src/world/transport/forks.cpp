#include "world/transport/forks.h"

#include <pthread.h>

#include <atomic>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

std::atomic<std::uint32_t> forks_until_now = 0;

[[maybe_unused]] const int kRegistered =
    pthread_atfork(nullptr, nullptr, [] { forks_until_now.fetch_add(1); });

}  // namespace

std::uint32_t forks() { return forks_until_now.load(std::memory_order_relaxed); }

void fail_in_fork(std::string_view what) {
  fail<WorldError>(
      "World", what,
      " belongs to the process that this one was forked from, and cannot be used here; "
      "work with plain tensors in a fork, or start the process by spawn, with a world "
      "of its own");
}

}  // namespace intarsia
