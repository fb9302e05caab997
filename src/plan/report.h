// What can be said of a plan: its steps, what they move, and what that costs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/plan.h"

namespace intarsia {

/// A plan with what it moves, counted.
struct PlanReport {
  Plan plan;
  std::string dtype = {};     ///< empty: only its size is known
  std::string topology = {};  ///< the file; empty: the standard topology
  std::optional<std::int64_t> allowed_bytes = std::nullopt;  ///< on a rank, as was asked for
  std::vector<Traffic> steps = {};                           ///< of each step
  Traffic in_all = {};

  explicit PlanReport(Plan of);

  /// Whether no way could receive less than `in_all.missing`: not where ranks reduce partial
  /// values, or make them of what they hold.
  bool has_bound() const;
  /// Received over the bound; unset without a bound, or where nothing must be received.
  std::optional<double> ratio() const;
  /// Whether all ranks were looked at.
  bool counts_all_ranks() const;
  /// `f32[8, 12]`, or `[8, 12] of 4 bytes each`.
  std::string tensor_text() const;
  std::string topology_text() const;
};

std::string to_text(const PlanReport& report);
nlohmann::ordered_json to_json(const PlanReport& report);

/// `1536 B`, `11.5 KiB`, `256 MiB`: as they are below 10 KiB, then with four digits.
std::string bytes_text(std::int64_t bytes);
/// `9.264 us`, with four digits that count.
std::string time_text(double seconds);
/// `2 steps`, `1 step`.
std::string count_text(std::size_t count, std::string_view what);

}  // namespace intarsia
