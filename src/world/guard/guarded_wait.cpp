#include "world/guard/guarded_wait.h"

#include <algorithm>

#include "world/transport/away.h"

namespace intarsia {

void wait_in_slices(c10d::Work& work, const GuardedGroup& group, std::uint64_t number,
                    std::chrono::milliseconds limit) {
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  // The end of a slice is an exception, so they are long: most calls end within the first.
  constexpr milliseconds kFirst{200};
  constexpr milliseconds kNext{1000};
  const auto begin = Clock::now();
  milliseconds slice = kFirst;
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
  }
}

}  // namespace intarsia
