#include <algorithm>
#include <limits>
#include <map>

#include "base/text.h"
#include "intarsia/error.h"
#include "pipeline/schedule/actions.h"

namespace intarsia {
namespace {

using enum ActionKind;
constexpr double kNever = std::numeric_limits<double>::infinity();

/// Runs all ranks by the clock, each as far as what it needs has a time.
class Clock {
 public:
  Clock(const Schedule& s, const ScheduleCosts& costs)
      : s_(s),
        costs_(costs),
        at_(s.ranks.size(), 0),
        free_at_(s.ranks.size(), 0),
        forward_(s, kNever),
        backward_(s, kNever),
        arrived_{{s, kNever}, {s, kNever}} {
    times_.ranks.resize(s.ranks.size());
  }

  ScheduleTimes run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < at_.size(); ++r) moved = go_on(r) || moved;
    }
    for (std::size_t r = 0; r < at_.size(); ++r) {
      if (at_[r] < s_.ranks[r].size()) {
        fail<ValueError>("simulate", "schedule ", s_.name, ": rank ", r, " cannot go on at ",
                         s_.ranks[r][at_[r]], "; check(schedule) says why");
      }
    }
    finish();
    return std::move(times_);
  }

 private:
  double length(const Action& a) const {
    const StageCosts& cost = costs_.of(a.stage);
    switch (a.kind) {
      case forward:
        return cost.forward;
      case backward:
        return cost.input_backward + cost.weight_backward;
      case input_backward:
        return cost.input_backward;
      default:
        return cost.weight_backward;
    }
  }

  /// When what an action needs is there.
  double ready(const Action& a) const {
    if (a.kind == forward) {
      if (a.stage == 0) return 0;
      return crosses(s_, a.stage, a.stage - 1) ? arrived_[0].at(a.stage, a.microbatch)
                                               : forward_.at(a.stage - 1, a.microbatch);
    }
    double at = forward_.at(a.stage, a.microbatch);
    if (a.kind == weight_backward) return backward_.at(a.stage, a.microbatch);
    if (a.stage + 1 < s_.stages()) {
      at =
          std::max(at, crosses(s_, a.stage, a.stage + 1) ? arrived_[1].at(a.stage, a.microbatch)
                                                         : backward_.at(a.stage + 1, a.microbatch));
    }
    return at;
  }

  bool go_on(std::size_t r) {
    const auto& actions = s_.ranks[r];
    const std::size_t first = at_[r];
    for (std::size_t& i = at_[r]; i < actions.size(); ++i) {
      const Action& a = actions[i];
      if (sends(a.kind)) send(r, a);
      if (!computes(a.kind)) continue;
      if (a.with_next) {
        const Action& b = actions[i + 1];
        const double begin = std::max({free_at_[r], ready(a), ready(b)});
        if (begin == kNever) break;
        const double end = begin + costs_.together * (length(a) + length(b));
        note(r, a, begin, end);
        note(r, b, begin, end);
        ++i;
      } else {
        const double begin = std::max(free_at_[r], ready(a));
        if (begin == kNever) break;
        note(r, a, begin, begin + length(a));
      }
    }
    return at_[r] != first;
  }

  void note(std::size_t r, const Action& a, double begin, double end) {
    times_.ranks[r].push_back({a, begin, end});
    free_at_[r] = end;
    if (a.kind == forward) forward_.at(a.stage, a.microbatch) = end;
    if (is_backward(a.kind)) backward_.at(a.stage, a.microbatch) = end;
  }

  /// One after the other in each direction.
  void send(std::size_t r, const Action& a) {
    const Transfer t = transfer_of(a);
    const int to = s_.rank_of_stage[static_cast<std::size_t>(t.to_stage)];
    double& channel = channels_[{static_cast<int>(r), to}];
    const double done = (t.backward ? backward_ : forward_).at(a.stage, a.microbatch);
    channel =
        std::max({channel, done, costs_.transfers_overlap ? 0 : free_at_[r]}) + costs_.transfer;
    if (!costs_.transfers_overlap) free_at_[r] = channel;
    arrived_[t.backward ? 1 : 0].at(t.to_stage, t.microbatch) = channel;
  }

  void finish() {
    double begin = kNever;
    double end = 0;
    for (const auto& rank : times_.ranks) {
      double computed = 0;
      double until = 0;  // actions that run at a time are counted once
      for (const TimedAction& a : rank) {
        begin = std::min(begin, a.begin);
        end = std::max(end, a.end);
        computed += std::max(0.0, a.end - std::max(a.begin, until));
        until = std::max(until, a.end);
      }
      times_.computes.push_back(computed);
      times_.peak.push_back(peak_of(rank));
    }
    times_.total = begin == kNever ? 0 : end - begin;
    for (const double computed : times_.computes) {
      if (times_.total > 0) times_.bubble = std::max(times_.bubble, 1 - computed / times_.total);
    }
  }

  /// Memory is taken when a forward begins, and given back when backwards end.
  double peak_of(const std::vector<TimedAction>& rank) const {
    double now = 0;
    double most = 0;
    for (const TimedAction& a : rank) {
      const StageCosts& cost = costs_.of(a.action.stage);
      if (a.action.kind == forward) now += cost.activation;
      most = std::max(most, now);
      if (a.action.kind == backward) now -= cost.activation;
      if (a.action.kind == input_backward) now -= cost.activation - cost.for_weights;
      if (a.action.kind == weight_backward) now -= cost.for_weights;
    }
    return most;
  }

  const Schedule& s_;
  const ScheduleCosts& costs_;
  std::vector<std::size_t> at_;
  std::vector<double> free_at_;
  ByStage<double> forward_;
  ByStage<double> backward_;
  ByStage<double> arrived_[2];  // at a stage: activations and gradients
  std::map<std::pair<int, int>, double> channels_;
  ScheduleTimes times_;
};

}  // namespace

ScheduleTimes simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  if (costs.stages.size() != 1 && static_cast<int>(costs.stages.size()) != schedule.stages()) {
    fail<ValueError>("simulate", "costs of ", costs.stages.size(), " stages were given for ",
                     schedule.stages(), "; give one for each, or one for all");
  }
  return Clock(schedule, costs).run();
}

}  // namespace intarsia
