#include <algorithm>
#include <array>
#include <map>

#include "base/text.h"
#include "intarsia/error.h"
#include "pipeline/schedule/actions.h"
#include "pipeline/schedule/channels.h"

namespace intarsia {
namespace {

using enum ActionKind;
constexpr std::string_view kWhere = "check";

/// Of one rank, action by action.
class RankCheck {
 public:
  RankCheck(const Schedule& s, std::size_t rank)
      : s_(s), trains_(has_backward(s)), rank_(rank), seen_(s, 0), held_{{s, -1}, {s, -1}} {}

  void run() {
    const auto& actions = s_.ranks[rank_];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& a = actions[i];
      check_names(a);
      if (a.with_next) check_pair(a, i + 1 < actions.size() ? &actions[i + 1] : nullptr);
      if (is_of_stage(a.kind)) {
        take_of_stage(a);
      } else {
        take(a);
      }
    }
    for (int stage = 0; stage < s_.stages(); ++stage) {
      if (s_.rank_of_stage[static_cast<std::size_t>(stage)] != static_cast<int>(rank_)) continue;
      for (int m = 0; m < s_.microbatches; ++m) check_complete(stage, m);
    }
  }

  int most_live() const { return most_live_; }
  int most_gathered() const { return most_gathered_; }
  int buffers() const { return static_cast<int>(buffers_[0].size() + buffers_[1].size()); }

 private:
  /// A bit for each kind.
  using Seen = std::uint16_t;
  static Seen bit(ActionKind kind) { return static_cast<Seen>(1U << static_cast<unsigned>(kind)); }

  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail<ValueError>(kWhere, "schedule ", s_.name, ", rank ", rank_, ": ", parts...);
  }

  bool has(const Action& a, ActionKind kind) const {
    return (seen_.at(a.stage, a.microbatch) & bit(kind)) != 0;
  }

  void needs(const Action& a, ActionKind kind) const {
    if (has(a, kind)) return;
    Action missing = a;
    missing.kind = kind;
    missing.buffer = -1;
    missing.with_next = false;
    refuse(a, " needs ", missing, " before it");
  }

  void check_names(const Action& a) const {
    if (a.stage < 0 || a.stage >= s_.stages()) refuse(a, ": there is no stage ", a.stage);
    const int owner = s_.rank_of_stage[static_cast<std::size_t>(a.stage)];
    if (owner != static_cast<int>(rank_)) refuse(a, ": stage ", a.stage, " is on rank ", owner);
    if (is_of_stage(a.kind)) return;
    if (a.microbatch < 0 || a.microbatch >= s_.microbatches) {
      refuse(a, ": there are microbatches 0 to ", s_.microbatches - 1);
    }
  }

  void check_pair(const Action& a, const Action* next) const {
    if (next == nullptr || !computes(a.kind) || !computes(next->kind)) {
      refuse(a, " runs with the action behind it, and both must compute");
    }
    if (next->with_next) refuse(a, ": no more than two actions run at a time");
    if (a.stage == next->stage && a.microbatch == next->microbatch) {
      refuse(a, " and ", *next, " depend on each other, and cannot run at a time");
    }
    // The second may not need the first either.
    const bool passes_on = !crosses(s_, a.stage, next->stage) && a.microbatch == next->microbatch;
    const bool forward_on =
        a.kind == forward && next->kind == forward && next->stage == a.stage + 1;
    const bool backward_on =
        is_backward(a.kind) && is_backward(next->kind) && next->stage == a.stage - 1;
    if (passes_on && (forward_on || backward_on)) {
      refuse(*next, " needs ", a, ", and cannot run at the same time");
    }
  }

  void take(const Action& a) {
    if (has(a, a.kind)) refuse(a, " is there twice");
    const int behind = a.stage + 1;
    const int before = a.stage - 1;
    switch (a.kind) {
      case forward:
        if (crosses(s_, a.stage, before)) needs(a, receive_forward);
        if (before >= 0 && !crosses(s_, a.stage, before)) needs_of(a, forward, before);
        break;
      case backward:
      case input_backward:
        needs(a, forward);
        if (has(a, backward) || has(a, input_backward)) refuse(a, ": the gradient is there");
        if (crosses(s_, a.stage, behind)) needs(a, receive_backward);
        if (behind < s_.stages() && !crosses(s_, a.stage, behind)) needs_backward_of(a, behind);
        break;
      case weight_backward:
        needs(a, input_backward);
        break;
      case send_forward:
        if (!crosses(s_, a.stage, behind)) refuse(a, ": no other rank needs it");
        needs(a, forward);
        break;
      case send_backward:
        if (!crosses(s_, a.stage, before)) refuse(a, ": no other rank needs it");
        if (!has(a, backward)) needs(a, input_backward);
        break;
      case receive_forward:
        if (!crosses(s_, a.stage, before)) refuse(a, ": no other rank sends it");
        take_buffer(a, 0);
        break;
      case receive_backward:
        if (!crosses(s_, a.stage, behind)) refuse(a, ": no other rank sends it");
        take_buffer(a, 1);
        break;
      default:
        break;
    }
    seen_.at(a.stage, a.microbatch) |= bit(a.kind);
    if (computes(a.kind)) check_gathered(a);
    if (a.kind == forward) most_live_ = std::max(most_live_, ++live_);
    if (trains_ ? !ends_backward(a.kind) : a.kind != forward) return;
    --live_;
    for (const std::size_t k : {0, 1}) {
      const int buffer = held_[k].at(a.stage, a.microbatch);
      if (buffer >= 0) buffers_[k][buffer].reset();
    }
  }

  void needs_of(const Action& a, ActionKind kind, int stage) const {
    Action other = a;
    other.stage = stage;
    if (!has(other, kind)) {
      other.kind = kind;
      other.with_next = false;
      refuse(a, " needs ", other, " before it");
    }
  }

  void needs_backward_of(const Action& a, int stage) const {
    Action other = a;
    other.stage = stage;
    if (!has(other, backward)) needs_of(a, input_backward, stage);
  }

  void take_buffer(const Action& a, std::size_t kind) {
    if (a.buffer < 0) refuse(a, " names no buffer; write 3RF5@0");
    auto& user = buffers_[kind][a.buffer];
    if (user) {
      refuse(a, " overwrites buffer ", a.buffer, ", which microbatch ", user->second, " of stage ",
             user->first, " needs until its last backward");
    }
    user = std::pair{a.stage, a.microbatch};
    held_[kind].at(a.stage, a.microbatch) = a.buffer;
  }

  void take_of_stage(const Action& a) {
    bool& is_gathered = gathered_[a.stage];
    if (a.kind == gather) {
      if (is_gathered) refuse(a, ": it is gathered already");
      is_gathered = true;
      uses_gathers_ = true;
      most_gathered_ = std::max(most_gathered_, ++now_gathered_);
    } else if (a.kind == free) {
      if (!is_gathered) refuse(a, ": it is not gathered");
      is_gathered = false;
      --now_gathered_;
    } else {
      if (reduced_[a.stage]) refuse(a, " is there twice");
      reduced_[a.stage] = true;
      for (int m = 0; m < s_.microbatches; ++m) {
        const Action of{.stage = a.stage, .microbatch = m};
        if (trains_ && !has(of, backward) && !has(of, weight_backward)) {
          refuse(a, " comes before the last backward of microbatch ", m);
        }
      }
    }
  }

  /// Once a rank gathers any stage, all that computes must be gathered.
  void check_gathered(const Action& a) {
    const auto found = gathered_.find(a.stage);
    if (uses_gathers_ && (found == gathered_.end() || !found->second)) {
      refuse(a, ": the parameters of stage ", a.stage, " are not gathered; write ", a.stage,
             "G before it");
    }
  }

  void check_complete(int stage, int microbatch) const {
    const Action a{.stage = stage, .microbatch = microbatch};
    const auto missing = [&](ActionKind kind) {
      if (has(a, kind)) return;
      Action other = a;
      other.kind = kind;
      refuse(other, " is missing");
    };
    missing(forward);
    if (crosses(s_, stage, stage + 1)) missing(send_forward);
    if (!trains_) return;
    if (!has(a, backward)) {
      missing(input_backward);
      missing(weight_backward);
    }
    if (crosses(s_, stage, stage - 1)) missing(send_backward);
  }

  const Schedule& s_;
  bool trains_;
  std::size_t rank_;
  ByStage<Seen> seen_;
  ByStage<int> held_[2];  // buffers of activations and of gradients
  std::array<std::map<int, std::optional<std::pair<int, int>>>, 2> buffers_;
  std::map<int, bool> gathered_;
  std::map<int, bool> reduced_;
  bool uses_gathers_ = false;
  int live_ = 0;
  int most_live_ = 0;
  int now_gathered_ = 0;
  int most_gathered_ = 0;
};

/// Both ends of what one rank sends to another must have it in one order.
void check_order_of_transfers(const Schedule& s) {
  std::map<std::pair<int, int>, std::vector<Action>> sent;
  std::map<std::pair<int, int>, std::vector<Action>> received;
  for (const auto& rank : s.ranks) {
    for (const Action& a : rank) {
      if (!sends(a.kind) && !receives(a.kind)) continue;
      const Transfer t = transfer_of(a);
      const std::pair edge{s.rank_of_stage[static_cast<std::size_t>(t.from_stage)],
                           s.rank_of_stage[static_cast<std::size_t>(t.to_stage)]};
      (sends(a.kind) ? sent : received)[edge].push_back(a);
    }
  }
  for (const auto& [edge, list] : sent) {
    const auto& other = received[edge];
    for (std::size_t i = 0; i < std::min(list.size(), other.size()); ++i) {
      if (transfer_of(list[i]) == transfer_of(other[i])) continue;
      fail<ValueError>(kWhere, "schedule ", s.name, ": what rank ", edge.first, " sends to rank ",
                       edge.second, " is received in another order: transfer ", i, " is ", list[i],
                       " there, and ", other[i], " here");
    }
  }
}

}  // namespace

ScheduleFacts check(const Schedule& s) {
  if (s.microbatches < 1 || s.stages() < 1 || s.ranks.empty()) {
    fail<ValueError>(kWhere, "schedule ", s.name, " has ", s.microbatches, " microbatches, ",
                     s.stages(), " stages and ", s.ranks.size(), " ranks; it needs one of each");
  }
  for (const int rank : s.rank_of_stage) {
    if (rank < 0 || rank >= static_cast<int>(s.ranks.size())) {
      fail<ValueError>(kWhere, "schedule ", s.name, " has a stage on rank ", rank, ", but ",
                       s.ranks.size(), " ranks");
    }
  }
  ScheduleFacts out;
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    RankCheck rank(s, r);
    rank.run();
    out.live.push_back(rank.most_live());
    out.gathered.push_back(rank.most_gathered());
    out.buffers.push_back(rank.buffers());
    out.transfers += static_cast<std::size_t>(
        std::ranges::count_if(s.ranks[r], [](const Action& a) { return sends(a.kind); }));
  }
  check_order_of_transfers(s);
  const std::string circle = deadlock_of(s, Channels::one_for_each_direction);
  if (!circle.empty()) {
    fail<ValueError>(kWhere, "schedule ", s.name,
                     ": the ranks wait for each other for ever: ", circle);
  }
  out.shared_channel_deadlock = deadlock_of(s, Channels::one_for_each_pair);
  return out;
}

}  // namespace intarsia
