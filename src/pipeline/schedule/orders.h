// Orders of what ranks compute, from which schedules are made.
#pragma once

#include <optional>
#include <vector>

#include "intarsia/schedule.h"

namespace intarsia {

using Orders = std::vector<std::vector<Action>>;  ///< by rank

/// Stages that go around the ranks: stage s is on rank s % ranks.
std::vector<int> stages_around(int ranks, int chunks);
/// Two for each rank, there and back: stages r and 2 * ranks - 1 - r are on rank r.
std::vector<int> stages_there_and_back(int ranks);

Orders gpipe_orders(int ranks, int microbatches, int chunks);
/// `split`: backwards of inputs only.
Orders one_f_one_b_orders(int ranks, int microbatches, bool split);
Orders interleaved_orders(int ranks, int microbatches, int chunks);
/// Forwards and backwards of inputs over stages there and back, by a pattern that repeats every six
/// chunks of work: a microbatch reaches the next rank after `out` of them on its first way through
/// the ranks, and after `back` on the second. The shorter, the less is in memory, and the more
/// gaps.
Orders v_orders(int ranks, int microbatches, int out, int back);
/// Forwards and backwards at a time. REQUIRES: microbatches >= 2 * ranks.
Orders dual_pipe_v_orders(int ranks, int microbatches);

struct WeightOptions {
  int most_live = 0;  ///< of a rank's microbatches of stages, from F to W
  ScheduleCosts costs = {};
  double least_gap = 0;  ///< that is filled, in parts of what the weight gradient takes
};

/// Orders that have no weight gradients, with these where a rank would wait, and before forwards
/// that would leave too many microbatches in memory. Nothing where the orders need more memory.
std::optional<Orders> with_weights(const std::vector<int>& rank_of_stage, int microbatches,
                                   const Orders& orders, const WeightOptions& options);

/// A schedule of orders, with what it sends.
Schedule scheduled(std::string name, std::vector<int> rank_of_stage, int microbatches,
                   Orders orders);

}  // namespace intarsia
