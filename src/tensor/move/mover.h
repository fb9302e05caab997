// Mover: runs plans. A short interpreter over their steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/plan.h"
#include "intarsia/world.h"
#include "tensor/move/exchange.h"
#include "tensor/move/pool.h"
#include "tensor/move/route.h"

namespace intarsia {

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

  struct Job {
    std::shared_ptr<const Plan> plan;
    std::vector<at::Tensor> pieces;
    /// Nobody writes to the pieces before the result was waited for.
    bool source_stays = true;
  };

  /// The pieces after the plan. They may share memory with those given, where nothing had to move
  /// and the source stays.
  Pending start(const Job& job, const Asker& asker);
  /// The same for many tensors: steps of the same kind over the same groups are one collective.
  std::vector<std::vector<at::Tensor>> run(std::vector<Job> jobs, const Asker& asker);

  struct JobBetween {
    std::shared_ptr<const RouteBetween> way;
    std::vector<at::Tensor> pieces;
  };
  /// The pieces of many tensors on other meshes, one for each hosted rank of any of them, in one
  /// exchange. REQUIRES: one dtype, and routes over the same ranks.
  std::vector<std::vector<at::Tensor>> run(std::vector<JobBetween> jobs, const Asker& asker);

  std::shared_ptr<const Route> route(const std::shared_ptr<const Plan>& plan);
  BufferPool& pool() { return *pool_; }

 private:
  World& world_;
  std::shared_ptr<BufferPool> pool_;
  std::mutex mutex_;
  std::array<std::shared_ptr<const Route>, 1024> routes_;
};

}  // namespace intarsia
