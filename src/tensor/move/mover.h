// Mover: runs plans. A short interpreter over their steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/plan.h"
#include "intarsia/redistribute.h"
#include "intarsia/world.h"
#include "tensor/move/exchange.h"
#include "tensor/move/pool.h"
#include "tensor/move/route.h"

namespace intarsia {

/// What each step of a plan handed over.
using StepsSent = c10::SmallVector<LedgerTotals, 4>;

/// Moves pieces along plans, for the ranks of one world that are hosted here. It remembers the
/// routes of plans that it ran, and uses its buffers again.
///
/// Every collective of a plan but the last is waited for before `start` returns: the last is then
/// the only one under way, and ranks that wait for several results in different orders still call
/// their collectives in the same order.
/// THREADS: any.
class Mover {
 public:
  explicit Mover(World& world) : world_(world), pool_(std::make_shared<BufferPool>()) {}

  /// The pieces after the plan. They may share memory with those given, where nothing had to move
  /// and the source stays. `sent`: one for each step of the plan, or none.
  Pending start(const PiecesToMove& tensor, const StartOptions& options, const CallSite& site,
                std::span<LedgerTotals> sent = {});
  /// The same for many tensors: steps of the same kind over the same groups are one collective.
  /// `sent`: is made as long as the list of tensors.
  std::vector<std::vector<at::Tensor>> run(std::vector<PiecesToMove> tensors, const CallSite& site,
                                           std::vector<StepsSent>& sent);
  /// The new pieces of many tensors in one exchange, such as one between meshes. REQUIRES: one
  /// dtype, and steps over the same ranks.
  std::vector<std::vector<at::Tensor>> run(std::vector<Moving> moving, const CallSite& site);

  std::shared_ptr<const Route> route(const std::shared_ptr<const Plan>& plan);
  BufferPool& pool() { return *pool_; }

 private:
  World& world_;
  std::shared_ptr<BufferPool> pool_;
  std::mutex mutex_;
  std::array<std::shared_ptr<const Route>, 1024> routes_;
};

}  // namespace intarsia
