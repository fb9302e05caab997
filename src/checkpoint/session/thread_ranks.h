// Ranks as threads of one process: for lockstep, and for tests.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/text.h"
#include "checkpoint/session/ranks.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {

/// Where threads wait for each other. One that leaves with an error is noticed by those that wait.
class ThreadMeeting {
 public:
  explicit ThreadMeeting(std::int64_t size) : said_(static_cast<std::size_t>(size)) {}

  std::string agree(std::size_t rank, std::string said, const Ranks::Verdict& verdict) {
    std::unique_lock lock(mutex_);
    const std::size_t round = round_;
    said_[rank] = std::move(said);
    if (++here_ == said_.size()) changed_.notify_all();
    if (rank == 0) {
      changed_.wait(lock, [&] { return here_ == said_.size() || gone_; });
      if (here_ != said_.size()) fail_gone();
      verdict_ = verdict(said_);
      here_ = 0;
      ++round_;
      changed_.notify_all();
      return verdict_;
    }
    changed_.wait(lock, [&] { return round_ != round || gone_; });
    if (round_ == round) fail_gone();
    return verdict_;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }

 private:
  [[noreturn]] void fail_gone() const {
    fail<WorldError>("checkpoint", "one of ", said_.size(), " ranks is gone");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> said_;
  std::string verdict_;
  std::size_t here_ = 0;
  std::size_t round_ = 0;
  bool gone_ = false;
};

/// One of them.
class ThreadRank : public Ranks {
 public:
  ThreadRank(ThreadMeeting& meeting, std::int64_t rank, std::int64_t size)
      : meeting_(meeting), rank_(rank), size_(size) {}
  std::int64_t rank() const override { return rank_; }
  std::int64_t size() const override { return size_; }
  std::string host() const override { return concat("the machine of rank ", rank_); }
  std::string agree(std::string said, const Verdict& verdict) override {
    return meeting_.agree(static_cast<std::size_t>(rank_), std::move(said), verdict);
  }

 private:
  ThreadMeeting& meeting_;
  std::int64_t rank_;
  std::int64_t size_;
};

/// Runs `run(ranks)` on each rank, in threads, and gives what each threw.
template <class Run>
std::vector<std::exception_ptr> run_ranks(std::int64_t size, const Run& run) {
  ThreadMeeting meeting(size);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRank ranks(meeting, rank, size);
      try {
        run(static_cast<Ranks&>(ranks));
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
      if (thrown[static_cast<std::size_t>(rank)]) meeting.leave();
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

}  // namespace intarsia::checkpoint
