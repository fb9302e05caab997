// Missing rows: those that a rule could have, found by running the op on pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "intarsia/prove.h"
#include "prove/bench.h"
#include "prove/combinations.h"
#include "prove/sample.h"

namespace intarsia {

/// Looks for rows that a rule does not offer, each once.
class MissingRows {
 public:
  /// REQUIRES: the bench is there as long as this is.
  explicit MissingRows(Bench& bench) : bench_(bench) {}

  /// The row for these inputs, if the op on the pieces of 2 and of 3 ranks gives pieces of the
  /// result, for values drawn several times. Unset where it does not, where nothing can be learned
  /// from this sample, and where the row was found before.
  std::optional<MissingRow> look_for(const Sample& sample, const Combination& placements);

 private:
  /// How often values are drawn: results that are true or false are equal by luck more often.
  std::uint64_t draws(const Sample& sample);
  /// Whether other values give another result: one that is always the same can be had from any
  /// partial values.
  bool depends_on_values(const Sample& sample);

  Bench& bench_;
  std::set<std::string> found_;  // inputs of rows
};

}  // namespace intarsia
