// Which schedule is the cheapest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/attention.h"
#include "intarsia/layout.h"
#include "intarsia/topology.h"
#include "intarsia/world.h"

namespace intarsia::context {

/// What attention is computed of, as far as costs go.
struct Sizes {
  std::int64_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0;
  std::int64_t size = 0, value_size = 0;  ///< of a head
  std::int64_t sent_value_size = 0;       ///< 0 where values are a part of keys
  std::int64_t element_bytes = 4;
  bool gradients = false;  ///< whether backward counts
};

/// Every schedule that the layouts allow, with its cost, in a fixed order. `query` shards the
/// sequence of queries, and keys are sharded as queries are.
std::vector<AttentionCost> schedule_costs(const Layout& query, const Sizes& sizes,
                                          const AttentionMask& mask, const SequenceOrder& order,
                                          const SequenceOrder& key_order, const Topology& topology);

/// The cheapest, if the schedule leaves it to be chosen: of those that shard the heads on its axes,
/// if it names any. Remembered for each world.
AttentionSchedule chosen_schedule(World& world, const AttentionSchedule& asked, const Layout& query,
                                  const Sizes& sizes, const AttentionMask& mask,
                                  const SequenceOrder& order, const SequenceOrder& key_order);

}  // namespace intarsia::context
