// The orders in which all ranks gather groups and reduce their gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "intarsia/mesh.h"
#include "intarsia/world.h"

namespace intarsia {

/// A group, by its place among those that were given.
using GroupIndex = std::uint32_t;

enum class Phase : std::uint8_t { forward, backward };

/// Ranks must begin collectives in one order, whatever their graphs are. It is first assumed:
/// forward as groups were given, backward and reductions the other way round. In the first step
/// each rank notes what it sees; then they agree.
class GroupOrders {
 public:
  explicit GroupOrders(std::size_t groups);

  /// The order of gathers, and of reductions.
  const std::vector<GroupIndex>& gathers(Phase phase) const { return assumed_.of(phase); }
  const std::vector<GroupIndex>& reductions() const { return assumed_.reductions; }

  /// Whether the first step is not over.
  bool learning() const { return learning_; }
  /// While learning: a group was used, or had all its gradients.
  void saw_use(Phase phase, GroupIndex group);
  void saw_ready(GroupIndex group);
  /// While learning: the step begins again.
  void forget();
  /// What any rank saw becomes the order of all. COLLECTIVE: the mesh.
  void agree(World& world, const Mesh& mesh);

 private:
  struct Orders {
    std::vector<GroupIndex> forward;
    std::vector<GroupIndex> backward;
    std::vector<GroupIndex> reductions;
    const std::vector<GroupIndex>& of(Phase phase) const {
      return phase == Phase::forward ? forward : backward;
    }
  };

  std::size_t groups_;
  Orders assumed_;
  Orders seen_;
  bool learning_ = true;
};

}  // namespace intarsia
