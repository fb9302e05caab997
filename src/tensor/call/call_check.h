// Scopes of layers above that look at every call on distributed tensors before it is made.
#pragma once

#include <atomic>
#include <functional>

namespace intarsia {

class Frame;

/// Shows the calls of this thread to `check`, which may refuse them, until it ends. The innermost
/// scope counts.
class CallCheck {
 public:
  using Check = std::function<void(const Frame& call)>;

  explicit CallCheck(Check check);
  ~CallCheck();
  CallCheck(const CallCheck&) = delete;
  CallCheck& operator=(const CallCheck&) = delete;

  static void show(const Frame& call) {
    if (open_.load(std::memory_order_relaxed) != 0) show_to_innermost(call);
  }

 private:
  static void show_to_innermost(const Frame& call);
  static inline std::atomic<int> open_ = 0;  // of all threads

  Check check_;
  const CallCheck* outside_;
};

}  // namespace intarsia
