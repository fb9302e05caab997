// Background: a thread that does one piece of work at a time, behind those who wait for nothing.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace intarsia::checkpoint {

class Background {
 public:
  Background() = default;
  /// Waits for the work at hand. In a fork, where its thread is not, it waits for nothing.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// Begins the work. REQUIRES: nothing is running.
  void start(std::function<void()> work);
  /// Waits for it; throws what it threw, once.
  void wait();
  /// Whether it is still at work.
  bool running() const;
  /// Whether it has ended with an error that `wait` has not thrown yet.
  bool failed() const;

 private:
  void join();

  std::thread thread_;
  int process_ = 0;
  mutable std::mutex mutex_;
  bool running_ = false;
  std::exception_ptr thrown_;
};

/// From now on, threads that compute go before this one.
void lower_priority();

/// Something that one thread waits for and another one says once.
class Signal {
 public:
  void set();
  void reset();
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

}  // namespace intarsia::checkpoint
