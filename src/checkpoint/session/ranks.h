// Ranks: how the ranks of a save come to one verdict.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace intarsia::checkpoint {

/// What checkpoints ask of the other ranks. Texts are short, and few.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual std::int64_t rank() const = 0;
  virtual std::int64_t size() const = 0;
  /// The name of this rank's machine.
  virtual std::string host() const = 0;

  /// Made by rank 0 from what all ranks said, in their order.
  using Verdict = std::function<std::string(std::span<const std::string> said)>;
  /// Every rank says something, rank 0 makes a verdict, and all get it. WorldError that names the
  /// ranks that did not come in time. COLLECTIVE: all ranks, in the same order.
  virtual std::string agree(std::string said, const Verdict& verdict) = 0;
};

/// A world of one.
class OneRank : public Ranks {
 public:
  std::int64_t rank() const override { return 0; }
  std::int64_t size() const override { return 1; }
  std::string host() const override { return "this machine"; }
  std::string agree(std::string said, const Verdict& verdict) override {
    return verdict(std::span(&said, 1));
  }
};

}  // namespace intarsia::checkpoint
