#include "intarsia/simulate.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/session/step_log.h"

namespace intarsia {
namespace {

/// A call that was over when it began. The first wait for it is noted.
class DoneWork final : public c10d::Work {
 public:
  /// `log`: where the call is noted, if it is.
  explicit DoneWork(StepLog* log = nullptr, std::size_t number = 0) : log_(log), number_(number) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    if (log_ != nullptr && StepLog::current() == log_) log_->wait(number_);
    log_ = nullptr;
    return true;
  }

 private:
  StepLog* log_;
  std::size_t number_;
};

/// Sends nothing. What arrives has sizes and no values, so it must be on the meta device.
class SimulatedBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  SimulatedBackend(int rank, const std::vector<std::int64_t>& ranks, std::string like)
      : c10d::Backend(rank, static_cast<int>(ranks.size())),
        like_(std::move(like)),
        ranks_(std::make_shared<const std::vector<std::int64_t>>(ranks)) {}

  const std::string getBackendName() const override { return like_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return done("all_reduce", tensors[0]);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return done("broadcast", tensors[0]);
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor&, const c10d::AllgatherOptions&) override {
    return done("all_gather", out);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions&) override {
    check_meta(out);
    return done("reduce_scatter", in);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor&, std::vector<std::int64_t>&,
                        std::vector<std::int64_t>&, const c10d::AllToAllOptions&) override {
    return done("all_to_all", out);
  }
  WorkPtr send(Tensors& tensors, int, int) override { return done("send", tensors[0]); }
  WorkPtr recv(Tensors& tensors, int, int) override { return done("recv", tensors[0]); }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return c10::make_intrusive<DoneWork>(); }

 private:
  static void check_meta(const at::Tensor& buffer) {
    if (!buffer.is_meta()) {
      fail<UnsupportedError>("simulate",
                             "a simulated world sends nothing, so it cannot fill a "
                             "tensor with values; give tensors of the meta device");
    }
  }

  /// `buffer`: the longer one.
  WorkPtr done(const char* name, const at::Tensor& buffer) const {
    check_meta(buffer);
    StepLog* log = StepLog::current();
    if (log == nullptr) return c10::make_intrusive<DoneWork>();
    const std::size_t number =
        log->begin({.name = name, .bytes = static_cast<double>(buffer.nbytes()), .ranks = ranks_});
    return c10::make_intrusive<DoneWork>(log, number);
  }

  std::string like_;
  std::shared_ptr<const std::vector<std::int64_t>> ranks_;
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
    return c10::make_intrusive<SimulatedBackend>(index, ranks, like);
  };
  return World::assemble(std::move(parts));
}

}  // namespace intarsia
