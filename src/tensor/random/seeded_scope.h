// Random numbers from a seed of their own, for a while.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "intarsia/world.h"

namespace intarsia {

/// While one lives, torch's default generators begin with a seed, for ops on distributed and on
/// plain tensors; afterwards they are as before. Where several ranks share a process, so that its
/// generators are not those of one rank, only ops on distributed tensors are concerned.
class SeededScope {
 public:
  SeededScope(World& world, std::uint64_t seed);
  ~SeededScope();
  SeededScope(const SeededScope&) = delete;
  SeededScope& operator=(const SeededScope&) = delete;

 private:
  World& world_;
  std::optional<at::Generator> before_;                            // of a shared process
  std::vector<std::pair<at::Generator, at::Tensor>> states_ = {};  // of others
};

}  // namespace intarsia
