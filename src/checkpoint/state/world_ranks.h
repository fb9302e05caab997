// The ranks of a world as checkpoints see them.
#pragma once

#include <utility>

#include "checkpoint/session/ranks.h"
#include "intarsia/world.h"

namespace intarsia::checkpoint {

/// Talks by collectives on a group of all ranks, so that the guard names one that does not come,
/// or that makes another call on it.
class WorldRanks : public Ranks {
 public:
  /// REQUIRES: the world hosts one rank here, and `comm` has all ranks.
  WorldRanks(World& world, Comm comm) : world_(world), comm_(std::move(comm)) {}
  std::int64_t rank() const override { return world_.rank(); }
  std::int64_t size() const override { return world_.size(); }
  std::string host() const override;
  std::string agree(std::string said, const Verdict& verdict) override;

 private:
  World& world_;
  Comm comm_;
};

/// All ranks of a world, as a mesh.
Mesh mesh_of_all(const World& world);

}  // namespace intarsia::checkpoint
