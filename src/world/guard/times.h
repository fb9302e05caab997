// Times: where a rank is in its program, and how long its last steps took.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia {

/// Nanoseconds of the steady clock, which is one for a host.
inline std::int64_t nanoseconds_now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The phase of a rank and the times of its last steps, in memory that starts as zeros and that
/// other processes read while the rank writes.
///
/// THREADS: one at a time writes; any may read.
class Times {
 public:
  static constexpr std::size_t kPhases = 8;  // of different names; all further ones are the last
  static constexpr std::size_t kSteps = 64;  // that are kept

  /// What a step took in microseconds: in each phase without waiting for others, and waiting.
  struct Step {
    std::array<std::uint32_t, kPhases> own{};
    std::uint32_t waited = 0;
  };

  /// The place of a phase among those of this rank; one of a new name is added.
  std::size_t place_of(std::string_view phase);
  /// Notes that a phase began; unset: the last one ended, and none began.
  void note_phase(std::optional<std::size_t> place, std::int64_t now);
  void note_step(const Step& step);

  /// The phase that the rank is in; empty before the first.
  std::string phase() const;
  /// When it began, in nanoseconds of the steady clock.
  std::int64_t since() const { return since_.load(std::memory_order_relaxed); }
  /// How many steps were noted.
  std::uint64_t steps() const { return steps_.load(std::memory_order_acquire); }
  /// A step, counted from 0 on; unset if it was not noted yet, or too long ago.
  std::optional<Step> step(std::uint64_t number) const;
  /// The names of the phases that this rank knows.
  std::vector<std::string> phases() const;

 private:
  struct Noted {
    std::atomic<std::uint64_t> number;  // counted from 1, so that zero is none
    std::array<std::atomic<std::uint32_t>, kPhases> own;
    std::atomic<std::uint32_t> waited;
  };
  std::atomic<std::uint64_t> current_;  // its place, counted from 1
  std::atomic<std::int64_t> since_;
  std::atomic<std::uint64_t> known_;
  std::array<std::array<char, 32>, kPhases> names_;
  std::atomic<std::uint64_t> steps_;
  std::array<Noted, kSteps> noted_;
};

}  // namespace intarsia
