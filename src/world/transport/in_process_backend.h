// A c10d backend whose ranks are threads of one process.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/in_process.h"

namespace intarsia {

/// One collective of one group: what each rank brought, and whether all have come.
struct Meeting {
  struct Share {
    bool here = false;
    std::string_view kind;
    std::vector<at::Tensor> in;
    std::vector<at::Tensor> out;
    std::int64_t root = 0;  // of a message: the rank at the other end
    std::string detail;     // what else all ranks must agree on
    std::vector<std::int64_t> in_counts;
    std::vector<std::int64_t> out_counts;
  };
  using Action = std::function<void(std::vector<Share>&)>;

  Meeting(std::size_t ranks, bool is_message) : is_message(is_message), shares(ranks) {}

  const bool is_message;  // from one rank to one other
  bool dropped = false;   // by a fault: nobody else will come

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Share> shares;
  std::size_t arrived = 0;
  bool done = false;
  std::string error;
};

/// What the ranks of a group share.
class Hub {
 public:
  Hub(std::string name, std::vector<std::int64_t> ranks)
      : name_(std::move(name)), ranks_(std::move(ranks)) {}

  const std::string& name() const { return name_; }
  std::size_t size() const { return ranks_.size(); }
  std::int64_t world_rank(std::size_t index) const { return ranks_[index]; }

  /// The meeting with this key, made by whoever comes first and forgotten when all have come. After
  /// `abort` every meeting is over.
  std::shared_ptr<Meeting> meeting(const std::string& key, bool is_message);
  void forget(const std::string& key);
  /// Ends all open meetings with an error.
  void abort(const std::string& error);

 private:
  std::string name_;
  std::vector<std::int64_t> ranks_;
  std::mutex mutex_;
  std::string aborted_;
  std::map<std::string, std::shared_ptr<Meeting>> open_;
};

/// Collectives of one rank. A call leaves its tensors at the meeting and returns; the rank that
/// comes last computes the results of all, in the order of ranks.
class InProcessBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  InProcessBackend(std::shared_ptr<Hub> hub, int index, const InProcessOptions& options);

  const std::string getBackendName() const override { return "in_process"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& out, Tensors& in, const c10d::AllgatherOptions&) override;
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override;
  WorkPtr gather(std::vector<Tensors>& out, Tensors& in,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& out, std::vector<Tensors>& in,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& out, std::vector<Tensors>& in,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& out, Tensors& in, const c10d::AllToAllOptions&) override;
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_counts,
                        std::vector<std::int64_t>& in_counts,
                        const c10d::AllToAllOptions&) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions&) override;

 private:
  WorkPtr meet(Meeting::Share share, const Meeting::Action& action);
  WorkPtr meet(const std::string& key, std::size_t place, bool is_message, Meeting::Share share,
               const Meeting::Action& action);
  /// Everyone is here: computes the results, unless ranks called different things.
  void hold(Meeting& meeting, const Meeting::Action& action);
  /// Asks the fault hook. True when the call is to be dropped.
  bool dropped(std::string_view kind);

  std::shared_ptr<Hub> hub_;
  const InProcessOptions& options_;
  std::uint64_t collectives_ = 0;
  std::uint64_t calls_ = 0;
  std::map<std::string, std::uint64_t> messages_;  // by sender, receiver and tag
};

}  // namespace intarsia
