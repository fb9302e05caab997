// What the ranks of a pipeline tell each other when a step begins and when it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/world.h"

namespace intarsia::pipeline {

/// What a rank is about to do.
struct Intent {
  std::int64_t trains = 0;
  std::int64_t step = 0;          ///< how many this pipeline has run
  std::uint64_t schedule = 0;     ///< a hash
  std::uint64_t batch = 0;        ///< of sizes and dtypes, of the batch and of what is trained
  std::uint64_t key = 0;          ///< drawn for this step
  std::vector<double> weights{};  ///< of the microbatches
};

/// Ranks of which each is in another place; or, where places are not alike, all their ranks.
class Line {
 public:
  Line(World& world, std::span<const Mesh> places, std::string name);

  /// What all of them are about to do, in the order of places. ValueError that names those which
  /// are about to do something else. COLLECTIVE.
  std::vector<Intent> agree(const Intent& mine) const;

  /// The numbers of each, as many from all. COLLECTIVE.
  std::vector<std::vector<double>> gather(std::string_view what,
                                          std::span<const double> mine) const;

  /// By member: its place, and whether it speaks for it; in lockstep the first for all.
  struct Member {
    std::size_t place = 0;
    bool speaks = true;
  };
  const std::vector<Member>& members() const { return members_; }

 private:
  World& world_;
  std::string name_;
  std::vector<std::int64_t> ranks_;
  std::vector<Member> members_;
  std::optional<Comm> comm_;
};

}  // namespace intarsia::pipeline
