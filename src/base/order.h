// Orders: lists that name each of 0..n-1 once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace intarsia {

/// Whether `values` lists 0..n-1, each once, in any order.
inline bool is_order_of(std::span<const std::int64_t> values, std::int64_t n) {
  if (static_cast<std::int64_t>(values.size()) != n) return false;
  std::vector<bool> seen(values.size(), false);
  for (const std::int64_t v : values) {
    if (v < 0 || v >= n || seen[static_cast<std::size_t>(v)]) return false;
    seen[static_cast<std::size_t>(v)] = true;
  }
  return true;
}

}  // namespace intarsia
