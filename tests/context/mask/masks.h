// Random masks for tests.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "intarsia/attention_mask.h"

namespace intarsia::testing {

using Random = std::mt19937_64;

inline std::int64_t below(Random& random, std::int64_t end) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
}

/// Positions at which documents begin.
inline std::vector<std::int64_t> random_documents(Random& random, std::int64_t size) {
  std::vector<std::int64_t> out{0};
  const std::int64_t longest = 1 + below(random, size);
  while (true) {
    const std::int64_t next = out.back() + 1 + below(random, longest);
    if (next >= size) return out;
    out.push_back(next);
  }
}

/// Any mask for a sequence that attends to itself.
inline AttentionMask random_mask(Random& random, std::int64_t size, std::int64_t samples = 1) {
  AttentionMask out;
  switch (below(random, 6)) {
    case 0:
      break;
    case 1:
      out = AttentionMask::window(below(random, size), below(random, 4));
      break;
    case 2: {
      std::vector<std::vector<Range>> queries;
      for (std::int64_t q = 0; q < size; ++q) {
        queries.emplace_back();
        for (std::int64_t k = below(random, 5); k < size; k += 2 + below(random, size)) {
          const std::int64_t end = std::min(size, k + 1 + below(random, 4));
          queries.back().push_back({k, end});
          k = end;
        }
      }
      return AttentionMask::listed(size, queries);
    }
    default:
      out = AttentionMask::causal();
  }
  if (below(random, 4) == 0) out = out.sinks(below(random, 4));
  if (below(random, 4) == 0) out = out.prefix(below(random, size));
  if (below(random, 3) == 0) {
    std::vector<std::vector<std::int64_t>> documents;
    const std::int64_t described = below(random, 2) == 0 ? 1 : samples;
    for (std::int64_t s = 0; s < described; ++s) {
      documents.push_back(random_documents(random, size));
    }
    out = out.documents_of_samples(documents);
  }
  return out;
}

}  // namespace intarsia::testing
