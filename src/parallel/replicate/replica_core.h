// What a Replica keeps: parameters, buckets, and the round that is under way.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/node.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/replicate.h"
#include "parallel/gradients/backward_rounds.h"
#include "parallel/model/same_model.h"
#include "tensor/core/translating.h"

namespace intarsia {

/// How errors, the bill and the ledger name it.
inline constexpr std::string_view kReplicate = "replicate";

/// A round is the averaging of one backward's gradients. The hooks of parameters fill buckets; full
/// buckets are sent, each after all before it, so that ranks send in the same order whatever their
/// graphs are; the end of backward sends the rest and waits.
struct Replica::Core : std::enable_shared_from_this<Replica::Core> {
 public:
  Core(World& world, Comm comm, std::string axis, const ReplicateOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  /// Looks at the model, makes it the same on all ranks, and sets the hooks.
  void start(const ReplicatedTensors& tensors);
  /// The round of a rank that has no gradients.
  void finish();
  ReplicaCounters counters() const;
  std::vector<std::vector<std::string>> names() const;
  const std::shared_ptr<std::atomic<int>>& local_depth() const { return local_depth_; }
  /// Runs what may throw, with errors as the options ask for them.
  template <class Function>
  void translated(Function&& call) const {
    if (options_.torch_errors) return translating(call);
    call();
  }

 private:
  class Hook;

  /// A parameter, and its gradient on the way.
  struct Slot {
    std::string name;
    at::Tensor parameter;
    c10::intrusive_ptr<torch::autograd::Node> accumulator = {};  // keeps the hook
    std::uintptr_t hook = 0;
    std::size_t bucket = 0;
    std::int64_t offset = 0;
    at::Tensor view = {};  // its place in the bucket
    bool arrived = false;  // its gradient is in the bucket, in this round
    bool unsent = false;   // it has gradients that other ranks have not seen
    at::Tensor kept = {};  // its gradient before the round, which the bucket would overwrite
  };

  struct Bucket {
    std::vector<std::size_t> members;
    std::int64_t elements = 0;  // of gradients; one for each member follows, see `used`
    at::TensorOptions options;
    bool casts = false;  // it is reduced in another dtype than the gradients have
    std::string text;
    at::Tensor flat = {};  // made when the first gradient comes
    at::Tensor used = {};  // for each member how many ranks used it
    std::size_t missing = 0;
    std::optional<Pending> sent = std::nullopt;
  };

  /// Buffers on the way.
  struct BufferRound {
    const FlatGroup* group;
    Pending sent;
  };

  // The way of a gradient.
  void came(std::size_t slot, bool defined);
  void begin_round();
  void contribute(Slot& slot);
  void contribute_unused(Slot& slot);
  void send_full();
  void send(Bucket& bucket);
  void receive(Bucket& bucket);

  // The end of a round.
  void end_of_backward();
  void run_round();
  std::vector<BufferRound> send_buffers();
  void follow_order();
  void reset_round();
  void leave_failed_backward();
  template <class Function>
  void communicating(Function&& call);
  void charge(const std::string& text, std::string transition, const LedgerTotals& sent);

  static void check_free(const NamedTensor& parameter);
  void add_slot(const NamedTensor& parameter);
  std::vector<std::vector<std::size_t>> buckets_by(const std::vector<std::size_t>& order) const;
  void set_buckets(std::vector<std::vector<std::size_t>> members);
  void prepare(Bucket& bucket);
  void check_usable() const;
  bool sends_nothing() const { return *local_depth_ > 0; }

  const ReplicateOptions options_;
  const std::shared_ptr<World> world_;
  const Comm comm_;
  const std::string axis_;
  const double scale_;
  const at::Tensor scale_tensor_;  // the same, as a number that has no dtype of its own
  const std::shared_ptr<std::atomic<int>> local_depth_ = std::make_shared<std::atomic<int>>(0);

  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<NamedTensor> frozen_;
  std::vector<Bucket> buckets_;
  std::vector<FlatGroup> buffers_;
  ReplicaCounters counters_;
  std::size_t next_ = 0;  // the bucket to be sent next
  BackwardRounds rounds_;
  std::vector<std::size_t> order_;  // in which gradients came
  bool follows_order_ = false;      // the buckets do
  std::string broken_;              // why no further round is possible
};

}  // namespace intarsia
