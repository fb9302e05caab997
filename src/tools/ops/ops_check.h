// `intarsia ops check`: proves rules.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "intarsia/prove.h"

namespace intarsia::tools {

struct CheckOptions {
  std::string name;  ///< an op, or `all`; may be empty where there are samples
  std::vector<std::string> samples;
  ProofOptions proof;
  std::size_t jobs = 1;
  /// Every `shares`-th sample, beginning with number `share`, from 0.
  std::size_t share = 0;
  std::size_t shares = 1;
  std::string report;   ///< file for all findings, or empty
  std::string missing;  ///< file for the missing rows, or empty
};

/// Prints what it found; 0 where all rules hold, else 1. ValueError where there is no such op or
/// sample.
int check_rules(const CheckOptions& options);

/// Runs counter-examples again: 0 where none differs, else 1.
int check_cases(const std::vector<std::string>& cases, const ProofOptions& options);

}  // namespace intarsia::tools
