// Where random ops get their keys from: the same on all ranks.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "intarsia/world.h"

namespace intarsia {

/// The draws of one world. THREADS: any.
class Draws {
 public:
  explicit Draws(World& world);

  /// 64 random bits, the same on all ranks: drawn from torch's default CPU generator, or, where
  /// several ranks share a process, from this world's own. WorldError when the ranks' generators
  /// were seeded differently; looked at once, through the store.
  std::uint64_t next();
  void seed(std::uint64_t seed);
  /// Draws from another generator from now on, and gives the one before. REQUIRES: several ranks
  /// share the process.
  at::Generator exchange(at::Generator generator) {
    return *std::exchange(generator_, std::move(generator));
  }

 private:
  void check_seeds();

  World& world_;
  std::optional<at::Generator> generator_;
  std::once_flag seeds_checked_;
};

}  // namespace intarsia
