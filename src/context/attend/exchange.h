// Keys and values on their way to queries, and their gradients on the way back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "context/mask/work.h"
#include "intarsia/attention.h"
#include "intarsia/world.h"
#include "tensor/local/halo.h"

namespace intarsia::context {

/// One sequence of keys that is sharded over the ranks of a group, and how its pieces travel. Keys
/// and values travel as one tensor, [batch, heads, sequence, both sizes].
///
/// COLLECTIVE: `forward` and `backward`, all ranks of the mesh, in the same order.
class Exchange {
 public:
  /// `spec`: of the tensor of keys and values. `needs`: the places of others that a rank needs;
  /// asked only to gather. REQUIRES: the world outlives it.
  Exchange(World& world, const Spec& spec, const SequenceOrder& order,
           AttentionSchedule::Keys schedule,
           const std::function<std::vector<Range>(std::size_t place)>& needs);

  /// Calls `use` with every piece of keys and values that a hosted rank may need, and where its
  /// positions stand; `member` counts the hosted ranks.
  using Use = std::function<void(std::size_t member, const at::Tensor& keys, const Runs& runs)>;
  void forward(const Pieces& pieces, const Use& use) const;

  /// The same, where `use` gives the gradients of what it was given. The result: the gradients of
  /// the pieces, added up over the ranks in a fixed order, as `use` gave them.
  using GradUse =
      std::function<at::Tensor(std::size_t member, const at::Tensor& keys, const Runs& runs)>;
  Pieces backward(const Pieces& pieces, const GradUse& use) const;

 private:
  void ring_forward(const Pieces& pieces, const Use& use) const;
  Pieces ring_backward(const Pieces& pieces, const GradUse& use) const;
  std::vector<at::Tensor> passed_on(const std::vector<at::Tensor>& tensors) const;
  /// Where the rank at a place holds keys.
  Runs runs_of(std::size_t place) const { return runs_at(order_, places_[place]); }
  Runs window_runs(std::size_t place) const;
  /// The place whose piece a member has after so many steps of the ring.
  std::size_t source(std::size_t member, std::size_t step) const;

  World* world_;
  Spec spec_;
  SequenceOrder order_;
  std::vector<std::string> axes_;
  std::vector<Range> places_;         // by place in the group
  std::vector<std::size_t> members_;  // the places of the hosted ranks
  bool is_ring_;
  std::vector<std::vector<Range>> needs_;
  std::optional<Halo> halo_;
};

}  // namespace intarsia::context
