// What the tensor layer keeps for each world.
#pragma once

#include <atomic>

#include "intarsia/communication.h"
#include "intarsia/plan.h"
#include "intarsia/world.h"
#include "tensor/core/cache.h"
#include "tensor/core/draws.h"
#include "tensor/core/impl.h"
#include "tensor/core/plain_log.h"
#include "tensor/core/recent_moves.h"
#include "tensor/move/bill.h"
#include "tensor/move/mover.h"

namespace intarsia {

struct Decision;

using PlanPointer = std::shared_ptr<const Plan>;

class TensorState final : public World::Extension {
 public:
  explicit TensorState(World& world);
  /// The state of a world, made on first use.
  static TensorState& of(World& world);

  World& world() { return world_; }
  BoundedCache<Decision>& decisions() { return decisions_; }
  Mover& mover() { return mover_; }
  BillBook& bill() { return bill_; }
  Draws& draws() { return draws_; }

  /// The plan from a tensor's layout to another; null, where there is no exact way.
  PlanPointer plan(const Spec& spec, const Layout& to);

  /// The pieces of a tensor after a plan. Charges the bill; communicates. A partial tensor
  /// remembers how it was reduced, and any other a move that was made a moment ago: neither is made
  /// twice. What decides about that is the same on all ranks.
  Pieces move(DistributedImpl& tensor, const PlanPointer& plan, const Reason& reason);
  /// The same for pieces that belong to no tensor.
  Pieces move(const Spec& spec, const Pieces& pieces, const PlanPointer& plan,
              const Reason& reason);
  /// An op writes to a tensor of this world.
  void note_write(DistributedImpl& tensor);
  /// Reduces the memory of a partial tensor where it is, for it and all its views: what is to be
  /// written cannot be partial values of a norm. Charges the bill; communicates.
  void settle(DistributedImpl& tensor, const Reason& reason);

  std::atomic<PlainTensors> plain_mode = PlainTensors::recorded;
  PlainLog plain_log;

 private:
  Pieces reduce_once(DistributedImpl& tensor, const PlanPointer& plan, const Reason& reason);
  std::optional<Pieces> reduced_with_base(DistributedImpl& view, const PlanPointer& plan,
                                          const Reason& reason);

  World& world_;
  Mover mover_{world_};
  BillBook bill_;
  Draws draws_{world_};
  BoundedCache<Decision> decisions_{4096};
  RecentMoves recent_;
};

}  // namespace intarsia
