// What actions are about.
#pragma once

#include <algorithm>
#include <cstdint>

#include "intarsia/schedule.h"

namespace intarsia {

inline bool computes(ActionKind kind) { return kind <= ActionKind::weight_backward; }
inline bool sends(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::send_backward;
}
inline bool receives(ActionKind kind) {
  return kind == ActionKind::receive_forward || kind == ActionKind::receive_backward;
}
/// Of a stage, whatever the microbatch.
inline bool is_of_stage(ActionKind kind) { return kind >= ActionKind::gather; }
/// Gives the gradient of the input.
inline bool is_backward(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::input_backward;
}
/// The last that needs what the forward left.
inline bool ends_backward(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::weight_backward;
}

/// Whether it only evaluates.
inline bool has_backward(const Schedule& s) {
  return std::ranges::any_of(s.ranks, [](const std::vector<Action>& rank) {
    return std::ranges::any_of(rank, [](const Action& a) { return is_backward(a.kind); });
  });
}

/// Whether two stages are on different ranks; there is none before the first and behind the last.
inline bool crosses(const Schedule& s, int stage, int to) {
  return to >= 0 && to < s.stages() &&
         s.rank_of_stage[static_cast<std::size_t>(stage)] !=
             s.rank_of_stage[static_cast<std::size_t>(to)];
}

/// What is moved between two ranks: the output of a stage to the one behind, or a gradient to the
/// one before. Both ends name it alike.
struct Transfer {
  bool backward = false;
  int from_stage = 0;
  int to_stage = 0;
  int microbatch = 0;
  friend auto operator<=>(const Transfer&, const Transfer&) = default;
};

/// REQUIRES: it sends or receives.
inline Transfer transfer_of(const Action& a) {
  switch (a.kind) {
    case ActionKind::send_forward:
      return {false, a.stage, a.stage + 1, a.microbatch};
    case ActionKind::receive_forward:
      return {false, a.stage - 1, a.stage, a.microbatch};
    case ActionKind::send_backward:
      return {true, a.stage, a.stage - 1, a.microbatch};
    default:
      return {true, a.stage + 1, a.stage, a.microbatch};
  }
}

/// A table of stages and microbatches.
template <class T>
class ByStage {
 public:
  ByStage(const Schedule& s, T value)
      : microbatches_(static_cast<std::size_t>(s.microbatches)),
        values_(static_cast<std::size_t>(s.stages()) * microbatches_, value) {}
  T& at(int stage, int microbatch) {
    return values_[static_cast<std::size_t>(stage) * microbatches_ +
                   static_cast<std::size_t>(microbatch)];
  }
  const T& at(int stage, int microbatch) const {
    return const_cast<ByStage*>(this)->at(stage, microbatch);
  }

 private:
  std::size_t microbatches_;
  std::vector<T> values_;
};

}  // namespace intarsia
