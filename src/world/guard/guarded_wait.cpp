#include "world/guard/guarded_wait.h"

#include <algorithm>
#include <cstdlib>

#include "world/transport/away.h"

namespace intarsia {
namespace {

/// After how long a rank that waits says who does not come: INTARSIA_GUARD_NOTICE, in seconds.
std::chrono::seconds notice_after() {
  static const std::chrono::seconds after = [] {
    constexpr std::chrono::seconds kUsual{30};
    const char* value = std::getenv("INTARSIA_GUARD_NOTICE");
    const long seconds = value == nullptr ? 0 : std::strtol(value, nullptr, 10);
    return seconds > 0 ? std::chrono::seconds(seconds) : kUsual;
  }();
  return after;
}

}  // namespace

void wait_in_slices(c10d::Work& work, const GuardedGroup& group, std::uint64_t number,
                    std::chrono::milliseconds limit) {
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  // The end of a slice is an exception, so they are long: most calls end within the first.
  constexpr milliseconds kFirst{200};
  constexpr milliseconds kNext{1000};
  const auto begin = Clock::now();
  milliseconds slice = kFirst;
  std::chrono::seconds notice = notice_after();
  while (true) {
    const auto left = limit - std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    const bool is_last = limit != kNoTimeout && left <= slice;
    try {
      work.wait(is_last ? std::max(left, milliseconds(1)) : slice);
      return;
    } catch (const std::exception&) {
      // It failed, or the slice ended, perhaps a moment before the call did.
      if (work.isCompleted()) return static_cast<void>(work.wait());
      if (is_last) throw;
    }
    if (slice == kFirst) group.note_line(number, current_line());
    slice = kNext;
    group.look(number);
    if (const auto waited = Clock::now() - begin; waited >= notice) {
      group.give_notice(number, std::chrono::duration_cast<std::chrono::seconds>(waited));
      notice *= 2;
    }
  }
}

}  // namespace intarsia
