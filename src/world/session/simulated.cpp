#include "intarsia/simulate.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

/// A call that was over when it began.
class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

/// Sends nothing. What arrives has sizes and no values, so it must be on the meta device.
class SimulatedBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  SimulatedBackend(int rank, int size, std::string like)
      : c10d::Backend(rank, size), like_(std::move(like)) {}

  const std::string getBackendName() const override { return like_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return done(tensors[0]);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return done(tensors[0]);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor&, const c10d::AllgatherOptions&) override {
    return done(out);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor&,
                               const c10d::ReduceScatterOptions&) override {
    return done(out);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor&, std::vector<std::int64_t>&,
                        std::vector<std::int64_t>&, const c10d::AllToAllOptions&) override {
    return done(out);
  }
  WorkPtr send(Tensors& tensors, int, int) override { return done(tensors[0]); }
  WorkPtr recv(Tensors& tensors, int, int) override { return done(tensors[0]); }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return c10::make_intrusive<DoneWork>(); }

 private:
  static WorkPtr done(const at::Tensor& tensor) {
    if (!tensor.is_meta()) {
      fail<UnsupportedError>("simulate",
                             "a simulated world sends nothing, so it cannot fill a "
                             "tensor with values; give tensors of the meta device");
    }
    return c10::make_intrusive<DoneWork>();
  }

  std::string like_;
};

}  // namespace

std::shared_ptr<World> simulate(const SimulateOptions& options) {
  if (options.backend != "gloo" && options.backend != "nccl" && options.backend != "shm") {
    fail<ValueError>("simulate", "the ways of '", options.backend,
                     "' are not known; known are gloo, nccl and shm");
  }
  WorldParts parts;
  parts.hosted = {options.rank};
  parts.size = options.size;
  parts.simulated = true;
  parts.shares_process = true;  // random numbers of its own
  parts.ledger_entries = options.ledger_entries;
  parts.make_backend =
      [like = options.backend](
          const std::string&, int index,
          const std::vector<std::int64_t>& ranks) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<SimulatedBackend>(index, static_cast<int>(ranks.size()), like);
  };
  return World::assemble(std::move(parts));
}

}  // namespace intarsia
