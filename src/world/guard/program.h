// Program: what the program of this process does beside its calls, for the boards of its guards.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/phase.h"
#include "world/guard/board.h"

namespace intarsia {

/// The boards of a guard: those of all its ranks, and which is this process's.
struct BoardsOfGuard {
  std::vector<const Board*> all = {};
  Board* mine = nullptr;
};

/// One for a process. THREADS: any.
class Program {
 public:
  static Program& instance();

  /// From now on what is noted is noted on this process's board of a guard too.
  void add(BoardsOfGuard boards);
  void remove(const Board& mine);

  void begin(std::string_view phase);
  void end();
  /// Notes an error that nobody caught. Takes no lock for long: a program may be ending.
  void note_error(std::string_view error);
  /// Notes the line where the program is, while it makes no call.
  void note_stay(std::string_view line);
  /// Since when this process made no call and began no phase; 0 if it has no guard.
  double quiet_seconds();
  std::vector<RankTimes> step_times();

  /// Counts a call that others may wait for elsewhere; for `ended`.
  std::uint64_t begin_call() { return events_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// A call has ended that the program waited for where it cannot be seen, as DDP does at the end
  /// of backward. It waited if it did nothing else meanwhile.
  void ended(std::uint64_t call, std::int64_t begin);

 private:
  friend class Waiting;
  Program() = default;
  /// Whether this thread's program is timed: it began the last phase.
  bool is_timed() const;
  void add_wait(std::int64_t nanoseconds);
  /// Books the time until now, and goes on in another phase. REQUIRES: the lock.
  void change_to(std::string phase);
  /// Notes a step that has ended. REQUIRES: the lock.
  void end_step();
  void note_phase(Times& times) const;
  /// Those whose boards are this process's. REQUIRES: the lock.
  std::span<const BoardsOfGuard> guards() const;

  std::mutex mutex_;
  std::vector<BoardsOfGuard> guards_;
  std::uint32_t forks_ = 0;                                   // after which they were added
  std::unique_ptr<Times> times_ = std::make_unique<Times>();  // where there is no guard
  std::vector<std::string> outer_;                            // phases around the current one
  std::string phase_;                                         // empty before the first
  std::int64_t since_ = 0;
  std::int64_t waited_ = 0;  // in this phase
  Times::Step step_;
  bool has_stepped_ = false;
  std::atomic<std::uint64_t> events_ = 0;
  std::atomic<const void*> thread_ = nullptr;
};

/// While it lives, this thread waits for other ranks.
class Waiting {
 public:
  Waiting() : begin_(Program::instance().is_timed() ? nanoseconds_now() : 0) {}
  ~Waiting() {
    if (begin_ != 0) Program::instance().add_wait(nanoseconds_now() - begin_);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::int64_t begin_;
};

}  // namespace intarsia
