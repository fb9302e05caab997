// Random legal schedules, and schedules with one fault.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "intarsia/schedule.h"

namespace intarsia::testing {

using Random = std::mt19937;

inline int below(Random& random, std::size_t n) {
  return static_cast<int>(std::uniform_int_distribution<std::size_t>(0, n - 1)(random));
}

/// Stages on any ranks, and actions in any order in which each has what it needs: some backwards
/// split, some actions two at a time.
inline Schedule random_schedule(unsigned seed) {
  using enum ActionKind;
  Random random(seed);
  Schedule s;
  s.name = "random " + std::to_string(seed);
  const int ranks = 1 + below(random, 4);
  const int stages = ranks + below(random, 4);
  s.microbatches = 1 + below(random, 5);
  for (int i = 0; i < stages; ++i) {
    s.rank_of_stage.push_back(i < ranks ? i : below(random, static_cast<std::size_t>(ranks)));
  }
  std::shuffle(s.rank_of_stage.begin(), s.rank_of_stage.end(), random);
  s.ranks.resize(static_cast<std::size_t>(ranks));
  // What can be done next; each action brings others.
  std::vector<Action> able;
  for (int m = 0; m < s.microbatches; ++m) able.push_back({.kind = forward, .microbatch = m});
  while (!able.empty()) {
    const auto at = able.begin() + below(random, able.size());
    const Action a = *at;
    able.erase(at);
    s.ranks[static_cast<std::size_t>(s.rank_of_stage[static_cast<std::size_t>(a.stage)])].push_back(
        a);
    const auto backward_of = [&](int stage) {
      const ActionKind kind = below(random, 2) == 0 ? backward : input_backward;
      able.push_back({.kind = kind, .stage = stage, .microbatch = a.microbatch});
    };
    if (a.kind == forward && a.stage + 1 < stages) {
      able.push_back({.kind = forward, .stage = a.stage + 1, .microbatch = a.microbatch});
    } else if (a.kind == forward) {
      backward_of(a.stage);
    } else if (a.kind != weight_backward && a.stage > 0) {
      backward_of(a.stage - 1);
    }
    if (a.kind == input_backward) {
      able.push_back({.kind = weight_backward, .stage = a.stage, .microbatch = a.microbatch});
    }
  }
  return with_transfers(std::move(s));
}

}  // namespace intarsia::testing
