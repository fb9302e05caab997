// What the tensor layer keeps for each world.
#pragma once

#include <ATen/core/Generator.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "intarsia/communication.h"
#include "intarsia/plan.h"
#include "intarsia/world.h"
#include "tensor/cache.h"
#include "tensor/decision.h"
#include "tensor/impl.h"
#include "tensor/mover.h"
#include "tensor/plain.h"

namespace intarsia {

using PlanPointer = std::shared_ptr<const Plan>;

/// Why a tensor is moved.
struct Reason {
  std::string_view op;
  bool implicit = true;   ///< no code asked for it by name
  bool fallback = false;  ///< the op has no rule
};

/// While it lives, what this thread moves is booked under the op whose formula runs, and is no
/// hidden move: it is what the op itself sends. The outermost counts.
class FormulaScope {
 public:
  /// `op` must outlive the scope.
  explicit FormulaScope(std::string_view op);
  ~FormulaScope();
  FormulaScope(const FormulaScope&) = delete;
  FormulaScope& operator=(const FormulaScope&) = delete;

 private:
  std::string_view before_;
};

class TensorState final : public World::Extension {
 public:
  explicit TensorState(World& world);
  /// The state of a world, made on first use.
  static TensorState& of(World& world);

  World& world() { return world_; }
  BoundedCache<Decision>& decisions() { return decisions_; }

  std::atomic<Communication> mode = Communication::automatic;

  /// The plan from a tensor's layout to another; null, where there is no exact way.
  PlanPointer plan(const Spec& spec, const Layout& to);
  Mover& mover() { return mover_; }

  /// Enters a move in the bill; refuses it first where the mode forbids it.
  void charge(const Spec& spec, const Route& route, const Reason& reason);
  /// The same for what an op sends by its nature and by no plan: `transition` says what, `bytes`
  /// are those that this process hands over. `backward`: where a node of autograd does not tell.
  void charge_own(std::string_view op, std::string tensor, std::string axis, std::string transition,
                  std::uint64_t bytes, std::optional<bool> backward = std::nullopt);
  std::vector<BillEntry> bill() const;
  void clear_bill();

  /// The pieces of a tensor after a plan. Charges the bill; communicates. A partial tensor
  /// remembers how it was reduced, and any other a move that was made a moment ago: neither is made
  /// twice. What decides about that is the same on all ranks.
  Pieces move(DistributedImpl& tensor, const PlanPointer& plan, const Reason& reason);
  /// The same for pieces that belong to no tensor.
  Pieces move(const Spec& spec, const Pieces& pieces, const PlanPointer& plan,
              const Reason& reason);
  void forget(const DistributedImpl& tensor);
  /// An op writes to a tensor of this world.
  void note_write(DistributedImpl& tensor);
  /// Reduces the memory of a partial tensor where it is, for it and all its views: what is to be
  /// written cannot be terms of a norm. Charges the bill; communicates.
  void settle(DistributedImpl& tensor, const Reason& reason);

  std::atomic<PlainTensors> plain_mode = PlainTensors::recorded;
  PlainLog plain_log;

  /// 64 random bits, the same on all ranks: drawn from torch's default CPU generator, or, where
  /// several ranks share a process, from this world's own. WorldError when the ranks' generators
  /// were seeded differently; looked at once, through the store.
  std::uint64_t draw();
  void seed(std::uint64_t seed);

 private:
  struct Move {
    const DistributedImpl* tensor = nullptr;
    std::uint64_t writes = 0;
    Layout to;
    Pieces pieces;
  };

  Pieces reduce_once(DistributedImpl& tensor, const PlanPointer& plan, const Reason& reason);
  std::optional<Pieces> reduced_with_base(DistributedImpl& view, const PlanPointer& plan,
                                          const Reason& reason);

  World& world_;
  Mover mover_{world_};
  BoundedCache<Decision> decisions_{4096};
  mutable std::mutex mutex_;
  /// The entry of the bill for moves of this kind. REQUIRES: the lock is held.
  BillEntry& book(BillEntry entry);
  std::vector<BillEntry> bill_;
  std::map<std::uint64_t, std::size_t> bill_index_;
  std::vector<Move> recent_;  // a ring of the last implicit moves
  std::size_t next_recent_ = 0;
  std::atomic<std::uint64_t> writes_ = 0;
  void check_seeds();
  std::optional<at::Generator> generator_;
  std::once_flag seeds_checked_;
};

/// `S->R`: the kinds of placement before and after a step.
std::string transition_text(const Step& step);

/// The module path of this thread, see ModuleScope.
std::string_view module_path();

}  // namespace intarsia
