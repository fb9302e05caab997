#include "checkpoint/session/background.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace intarsia::checkpoint {

Background::~Background() { join(); }

void Background::join() {
  if (!thread_.joinable()) return;
  process_ == ::getpid() ? thread_.join() : thread_.detach();
}

void Background::start(std::function<void()> work) {
  join();
  running_ = true;
  process_ = ::getpid();
  thread_ = std::thread([this, work = std::move(work)] {
    std::exception_ptr thrown;
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    thrown_ = thrown;
    running_ = false;
  });
}

void Background::wait() {
  join();
  const std::lock_guard lock(mutex_);
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

bool Background::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

bool Background::failed() const {
  const std::lock_guard lock(mutex_);
  return thrown_ != nullptr;
}

void lower_priority() {
  // On Linux each thread has a niceness of its own.
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
}

void Signal::set() {
  const std::lock_guard lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

void Signal::reset() {
  const std::lock_guard lock(mutex_);
  set_ = false;
}

void Signal::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return set_; });
}

}  // namespace intarsia::checkpoint
