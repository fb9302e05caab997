// In-process worlds: many ranks as threads of one process, over a real c10d backend.
//
// For tests and debugging: the same code runs on 64 ranks without a launcher, reductions have a
// fixed order, and any rank's call can be delayed, dropped or made to fail.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "intarsia/world.h"

namespace intarsia {

/// A call of the backend, before it is made.
struct FaultPoint {
  std::int64_t rank = 0;       ///< in the world
  std::string group;           ///< the group's name
  std::uint64_t sequence = 0;  ///< counts the rank's calls on this group from 0 on
  std::string_view kind;       ///< "all_reduce", "send", ...
};

/// What shall happen to it.
struct Fault {
  std::chrono::milliseconds delay{0};
  /// The call returns, but the others never hear of it, as if the machine had gone.
  bool drop = false;
  /// When not empty: the call throws a WorldError with this text, and the others learn of it.
  std::string fail = {};
};

struct InProcessOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  /// Asked before every call, in the thread of the calling rank.
  std::function<Fault(const FaultPoint&)> fault = {};
  std::size_t ledger_entries = 4096;
};

/// Runs `body` once for each rank, each in a thread of its own with a World of its own, and returns
/// when all are done. When ranks throw, the others' waits end with an error that names the first,
/// and the error of the first is thrown again here.
void run_in_process(int ranks, const std::function<void(World&)>& body,
                    const InProcessOptions& options = {});

}  // namespace intarsia
