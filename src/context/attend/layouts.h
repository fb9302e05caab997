// In which layouts attention computes.
#pragma once

#include "intarsia/attention.h"
#include "intarsia/layout.h"

namespace intarsia::context {

/// The dimensions of queries, keys and values: [batch, heads, sequence, head size].
inline constexpr int kHeads = 1;
inline constexpr int kSequence = 2;

struct Layouts {
  Layout query;
  Layout key;     ///< of keys and values
  Layout result;  ///< of what the caller gets
};

/// Whether heads can be sharded on the axes that a schedule names.
bool heads_fit(const Layout& query, const AttentionSchedule& schedule, std::int64_t heads);

/// ValueError, with the numbers, for a schedule that these layouts do not allow.
Layouts layouts_for(const Layout& query, const Layout& key, const Layout& value, std::int64_t heads,
                    std::int64_t key_heads, const AttentionSchedule& schedule);

/// The layout of the gradients of keys: where ranks hold the same keys for other queries or heads,
/// each has a part of the sum.
Layout key_grad_layout(const Layout& query, const Layout& key);

}  // namespace intarsia::context
