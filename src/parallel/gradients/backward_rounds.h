// The backward passes in which gradients are taken from autograd.
#pragma once

#include <functional>
#include <vector>

namespace intarsia {

/// When a backward begins and ends, for someone who takes its gradients.
///
/// Autograd tells of the end only where it was asked to, while the backward runs. One that throws
/// is never heard to end: what begins next finds it open. THREADS: guarded by its owner.
class BackwardRounds {
 public:
  /// Asks autograd to call `ended` when the backward that runs ends; once for each backward.
  /// REQUIRES: within a backward.
  void watch(std::function<void(int task)> ended);
  /// It is not waited for any more.
  void forget(int task);

  /// The gradients of the backward that runs are taken from now on. REQUIRES: within a backward.
  void open();
  /// No gradients are taken, and no backward is waited for.
  void close();
  bool is_open() const { return open_ != kNone; }
  bool is_open(int task) const { return is_open() && open_ == task; }
  /// Whether the gradients of the backward that runs are taken.
  bool is_current() const;

  /// Whether a backward was watched that is not running, and was never heard to end.
  bool has_failed() const;
  /// Called when a backward ends: whether it ran inside of another one, whose end is not heard.
  static bool is_nested();

 private:
  static constexpr int kNone = -1;  // as autograd says that no backward runs
  std::vector<int> watched_;        // graph tasks
  int open_ = kNone;
};

}  // namespace intarsia
