#include "pipeline/schedule/channels.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "pipeline/schedule/actions.h"

namespace intarsia {
namespace {

using enum ActionKind;

/// What one end has asked of a channel and not yet got, in order.
struct End {
  std::deque<Action> asked;
};

/// Runs the ranks without a clock: each as far as it can, until none can.
class Run {
 public:
  Run(const Schedule& s, Channels channels)
      : s_(s),
        channels_(channels),
        at_(s.ranks.size(), 0),
        arrived_{ByStage<char>(s, 0), ByStage<char>(s, 0)},
        waits_{ByStage<char>(s, 0), ByStage<char>(s, 0)} {}

  std::string deadlock() {
    std::deque<std::size_t> able;
    for (std::size_t r = 0; r < at_.size(); ++r) able.push_back(r);
    while (!able.empty()) {
      const std::size_t r = able.front();
      able.pop_front();
      go_on(r);
      for (const std::size_t woken : std::exchange(woken_, {})) able.push_back(woken);
    }
    for (std::size_t r = 0; r < at_.size(); ++r) {
      if (at_[r] < s_.ranks[r].size()) return circle_from(r);
    }
    return "";
  }

 private:
  using Key = std::pair<int, int>;

  int rank_of(int stage) const { return s_.rank_of_stage[static_cast<std::size_t>(stage)]; }

  static char& of(std::array<ByStage<char>, 2>& table, const Transfer& t) {
    return table[t.backward ? 1 : 0].at(t.to_stage, t.microbatch);
  }

  Key key(const Transfer& t) const {
    Key out{rank_of(t.from_stage), rank_of(t.to_stage)};
    if (channels_ == Channels::one_for_each_pair && out.first > out.second) {
      std::swap(out.first, out.second);
    }
    return out;
  }

  /// What an action that computes waits for.
  std::optional<Transfer> needs(const Action& a) const {
    if (a.kind == forward && crosses(s_, a.stage, a.stage - 1)) {
      return Transfer{false, a.stage - 1, a.stage, a.microbatch};
    }
    if (is_backward(a.kind) && crosses(s_, a.stage, a.stage + 1)) {
      return Transfer{true, a.stage + 1, a.stage, a.microbatch};
    }
    return std::nullopt;
  }

  void go_on(std::size_t r) {
    const auto& actions = s_.ranks[r];
    for (std::size_t& i = at_[r]; i < actions.size(); ++i) {
      const Action& a = actions[i];
      if (computes(a.kind)) {
        const auto transfer = needs(a);
        if (transfer && !of(arrived_, *transfer)) {
          of(waits_, *transfer) = true;
          return;
        }
      } else if (sends(a.kind) || receives(a.kind)) {
        ask(static_cast<int>(r), a);
      }
    }
  }

  /// Channels bring what both ends ask for first.
  void ask(int rank, const Action& a) {
    const Key k = key(transfer_of(a));
    const bool lower = rank == k.first;
    auto& ends = channels_open_[k];
    (lower ? ends.first : ends.second).asked.push_back(a);
    auto& [x, y] = ends;
    while (!x.asked.empty() && !y.asked.empty() &&
           transfer_of(x.asked.front()) == transfer_of(y.asked.front())) {
      const Transfer t = transfer_of(x.asked.front());
      of(arrived_, t) = true;
      x.asked.pop_front();
      y.asked.pop_front();
      if (std::exchange(of(waits_, t), false)) {
        woken_.insert(static_cast<std::size_t>(rank_of(t.to_stage)));
      }
    }
  }

  /// Follows who waits for whom until a rank comes again.
  std::string circle_from(std::size_t r) const {
    std::vector<std::size_t> seen;
    while (at_[r] < s_.ranks[r].size() && std::ranges::find(seen, r) == seen.end()) {
      seen.push_back(r);
      const Transfer t = *needs(s_.ranks[r][at_[r]]);
      r = static_cast<std::size_t>(rank_of(t.from_stage));
    }
    const auto first = std::ranges::find(seen, r);
    std::vector<std::string> parts;
    for (auto i = first == seen.end() ? seen.begin() : first; i != seen.end(); ++i) {
      parts.push_back(what_waits(*i));
    }
    return join(parts, "; ");
  }

  std::string what_waits(std::size_t r) const {
    const Action& a = s_.ranks[r][at_[r]];
    const Transfer t = *needs(a);
    const int from = rank_of(t.from_stage);
    std::string out = concat("rank ", r, " waits at ", a, " for what rank ", from, " sends");
    const auto found = channels_open_.find(key(t));
    if (found == channels_open_.end()) return out;
    const auto& [x, y] = found->second;
    if (!x.asked.empty() && !y.asked.empty()) {
      out += concat(", but their channel is at ", x.asked.front(), " on rank ", found->first.first,
                    " and at ", y.asked.front(), " on rank ", found->first.second);
    }
    return out;
  }

  const Schedule& s_;
  Channels channels_;
  std::vector<std::size_t> at_;
  std::map<Key, std::pair<End, End>> channels_open_;
  std::array<ByStage<char>, 2> arrived_;  // of activations and of gradients, by where they go
  std::array<ByStage<char>, 2> waits_;    // whether their rank waits for them
  std::set<std::size_t> woken_;
};

}  // namespace

std::string deadlock_of(const Schedule& schedule, Channels channels) {
  return Run(schedule, channels).deadlock();
}

}  // namespace intarsia
