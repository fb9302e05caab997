// What a simulated rank does, in order: see step_time.h.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "intarsia/step_time.h"

namespace intarsia {

/// While it lives, what this thread does in a simulated world enters it. One at a time for each
/// thread; the last that began counts.
class StepLog {
 public:
  StepLog();
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  /// That of this thread; nullptr where nothing is noted.
  static StepLog* current();

  void kernel(StepEvent event) { events_.push_back(std::move(event)); }
  /// Returns its number, for `wait`.
  std::size_t begin(StepEvent collective);
  void wait(std::size_t number);
  std::vector<StepEvent> take() { return std::move(events_); }

 private:
  StepLog* before_;
  std::vector<StepEvent> events_;
};

/// While it lives, nothing is noted: what is done is no part of the program.
class StepLogPause {
 public:
  StepLogPause();
  ~StepLogPause();
  StepLogPause(const StepLogPause&) = delete;
  StepLogPause& operator=(const StepLogPause&) = delete;

 private:
  StepLog* before_;
};

}  // namespace intarsia
