#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "pipeline/schedule/actions.h"
#include "pipeline/schedule/orders.h"

namespace intarsia {
namespace {

using enum ActionKind;
using Edge = std::pair<int, int>;  // from a rank to another

/// What a rank computes, and what it receives before and sends behind each.
struct Slot {
  Action action;
  std::vector<Action> before;
  std::vector<Action> behind;
};

Action transfer(ActionKind kind, int stage, int microbatch) {
  return {.kind = kind, .stage = stage, .microbatch = microbatch};
}

int rank_of(const Schedule& s, int stage) {
  return s.rank_of_stage[static_cast<std::size_t>(stage)];
}

/// Where each rank's actions stand that use what arrives.
class Places {
 public:
  explicit Places(const Schedule& s) : forwards_(s, 0), backwards_(s, 0) {
    for (const auto& rank : s.ranks) {
      for (std::size_t i = 0; i < rank.size(); ++i) {
        const Action& a = rank[i];
        if (a.kind == forward) forwards_.at(a.stage, a.microbatch) = i;
        if (is_backward(a.kind)) backwards_.at(a.stage, a.microbatch) = i;
      }
    }
  }
  /// Of the action that needs what is received.
  std::size_t of(const Action& receive) const {
    return (receive.kind == receive_forward ? forwards_ : backwards_)
        .at(receive.stage, receive.microbatch);
  }

 private:
  ByStage<std::size_t> forwards_;
  ByStage<std::size_t> backwards_;
};

/// Gives what is received the lowest buffers that nothing needs at that time, apart for activations
/// and gradients. A buffer is needed until the last backward of its microbatch, or until its
/// forward where there are no backwards.
void number_buffers(const Schedule& s, std::vector<Action>& actions) {
  const bool trains = has_backward(s);
  std::set<int> free[2];
  int made[2] = {0, 0};
  ByStage<int> held[2] = {{s, -1}, {s, -1}};
  for (Action& a : actions) {
    if (receives(a.kind)) {
      const std::size_t k = a.kind == receive_forward ? 0 : 1;
      a.buffer = free[k].empty() ? made[k]++ : *free[k].begin();
      free[k].erase(a.buffer);
      held[k].at(a.stage, a.microbatch) = a.buffer;
    }
    if (trains ? !ends_backward(a.kind) : a.kind != forward) continue;
    for (const std::size_t k : {0, 1}) {
      const int buffer = held[k].at(a.stage, a.microbatch);
      if (buffer >= 0) free[k].insert(buffer);
    }
  }
}

}  // namespace

Schedule with_transfers(Schedule s) {
  for (auto& rank : s.ranks) {
    std::erase_if(rank, [](const Action& a) { return sends(a.kind) || receives(a.kind); });
  }
  const Places places(s);
  std::vector<std::vector<Slot>> slots;
  std::map<Edge, std::vector<Action>> received;  // in the order in which it is sent
  for (const auto& rank : s.ranks) {
    std::vector<Slot>& out = slots.emplace_back();
    for (const Action& a : rank) {
      Slot& slot = out.emplace_back(Slot{a, {}, {}});
      const bool is_forward = a.kind == forward;
      if (!is_forward && !is_backward(a.kind)) continue;
      const int to = is_forward ? a.stage + 1 : a.stage - 1;
      if (!crosses(s, a.stage, to)) continue;
      slot.behind.push_back(
          transfer(is_forward ? send_forward : send_backward, a.stage, a.microbatch));
      received[{rank_of(s, a.stage), rank_of(s, to)}].push_back(
          transfer(is_forward ? receive_forward : receive_backward, to, a.microbatch));
    }
  }
  for (const auto& [edge, actions] : received) {
    // As they are sent, each before the first action that needs it or one sent later, and one
    // action ahead of that, so that it arrives while the rank computes.
    std::vector<Slot>& rank = slots[static_cast<std::size_t>(edge.second)];
    std::size_t at = rank.size();
    for (auto a = actions.rbegin(); a != actions.rend(); ++a) {
      at = std::min(at, places.of(*a));
      Slot& slot = rank[at == 0 ? 0 : at - 1];
      slot.before.insert(slot.before.begin(), *a);
    }
  }
  for (std::size_t r = 0; r < slots.size(); ++r) {
    std::vector<Action> made;
    std::vector<Action> behind;  // of actions that run at a time, behind all of them
    for (Slot& slot : slots[r]) {
      const bool begins = made.empty() || !made.back().with_next;
      if (begins) {
        made.insert(made.end(), behind.begin(), behind.end());
        behind.clear();
      }
      auto place = made.end();
      if (!begins) --place;  // before the first of the pair
      made.insert(place, slot.before.begin(), slot.before.end());
      made.push_back(slot.action);
      behind.insert(behind.end(), slot.behind.begin(), slot.behind.end());
    }
    made.insert(made.end(), behind.begin(), behind.end());
    number_buffers(s, made);
    s.ranks[r] = std::move(made);
  }
  return s;
}

Schedule without_backward(Schedule s) {
  for (auto& rank : s.ranks) {
    std::erase_if(rank, [](const Action& a) { return a.kind != forward; });
    for (Action& a : rank) a.with_next = false;
  }
  return with_transfers(std::move(s));
}

Schedule with_gathers(Schedule s, int most_gathered) {
  for (auto& rank : s.ranks) {
    std::erase_if(rank, [](const Action& a) { return is_of_stage(a.kind); });
    std::vector<Action> made;
    std::set<int> gathered;
    std::map<int, int> left;  // actions that compute, by stage
    for (const Action& a : rank) left[a.stage] += computes(a.kind) ? 1 : 0;
    // Gives up stages, those that are needed again last, until another one may be gathered.
    const auto make_room = [&](std::size_t from, const std::set<int>& kept) {
      while (static_cast<int>(gathered.size()) >= std::max(1, most_gathered)) {
        std::set<int> open = gathered;
        for (const int stage : kept) open.erase(stage);
        if (open.empty()) return;  // both of a pair are needed
        for (std::size_t i = from; i < rank.size() && open.size() > 1; ++i) {
          if (computes(rank[i].kind)) open.erase(rank[i].stage);
        }
        gathered.erase(*open.begin());
        made.push_back({.kind = free, .stage = *open.begin()});
      }
    };
    for (std::size_t i = 0; i < rank.size(); ++i) {
      const bool is_pair = rank[i].with_next && i + 1 < rank.size();
      const std::size_t end = i + (is_pair ? 2 : 1);
      std::set<int> here;  // stages of an action or a pair
      for (std::size_t k = i; k < end; ++k) {
        if (computes(rank[k].kind)) here.insert(rank[k].stage);
      }
      for (const int stage : here) {
        if (gathered.contains(stage)) continue;
        make_room(i, here);
        gathered.insert(stage);
        made.push_back({.kind = gather, .stage = stage});
      }
      for (std::size_t k = i; k < end; ++k) {
        made.push_back(rank[k]);
        if (computes(rank[k].kind)) --left[rank[k].stage];
      }
      for (const int stage : here) {
        if (left[stage] > 0) continue;
        gathered.erase(stage);
        made.push_back({.kind = reduce, .stage = stage});
        made.push_back({.kind = free, .stage = stage});
      }
      i = end - 1;
    }
    rank = std::move(made);
  }
  return s;
}

Schedule scheduled(std::string name, std::vector<int> rank_of_stage, int microbatches,
                   Orders orders) {
  return with_transfers({.name = std::move(name),
                         .microbatches = microbatches,
                         .rank_of_stage = std::move(rank_of_stage),
                         .ranks = std::move(orders)});
}

}  // namespace intarsia
