#include <ATen/ATen.h>

#include <condition_variable>
#include <deque>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/symmetric_memory.h"
#include "world/transport/backends.h"
#include "world/transport/c10d_reductions.h"
#include "world/transport/error_text.h"
#include "world/transport/shared_collectives.h"

namespace intarsia {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using Bytes = SharedCollectives::Bytes;
using ConstBytes = SharedCollectives::ConstBytes;

/// A call that waits for its turn, or is under way, or done.
class ShmWork final : public c10d::Work {
 public:
  explicit ShmWork(std::function<void()> call) : call_(std::move(call)) {}

  /// Makes the call, and lets go of its tensors.
  void run() { std::exchange(call_, nullptr)(); }
  void end(const std::exception_ptr& error) {
    call_ = nullptr;
    finish(error);
  }

 private:
  std::function<void()> call_;
};

Bytes memory_of(const at::Tensor& t) {
  return {static_cast<std::byte*>(t.mutable_data_ptr()), t.nbytes()};
}

/// The parts of a tensor with so many elements each; without counts, equal ones.
std::vector<Bytes> parts_of(std::string_view call, const at::Tensor& t,
                            const std::vector<std::int64_t>& counts, int n) {
  const Bytes all = memory_of(t);
  std::vector<Bytes> parts;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const std::int64_t count = counts.empty() ? t.numel() / n : counts[i];
    const std::size_t length = static_cast<std::size_t>(count) * t.element_size();
    parts.push_back(all.subspan(begin, std::min(length, all.size() - begin)));
    begin += length;
    if (begin > all.size()) break;
  }
  if (begin != all.size()) {
    fail<ValueError>(call, "the parts (", join(counts), ") do not make up a tensor of ", t.numel(),
                     " elements");
  }
  return parts;
}

Placement placement_of(std::string_view call, const c10d::ReduceOp& op) {
  for (const ReductionOfC10d& r : kReductionsOfC10d) {
    if (r.op == op.op_) return Placement::partial(r.reduction);
  }
  fail<UnsupportedError>(call, "this reduction is not supported");
}

void check_tensor(std::string_view call, const at::Tensor& t) {
  if (!t.is_cpu()) {
    fail<UnsupportedError>(call, "shared memory moves tensors of the CPU, and this one is on ",
                           t.device().str(), "; use the backend nccl for CUDA");
  }
  if (!t.is_contiguous())
    fail<ValueError>(call, "the tensor has strides (", join(t.strides()), ") for sizes (",
                     join(t.sizes()), "); pass contiguous()");
}

/// One thread makes the calls of a group in their order, so that they run beside computation.
class ShmBackend final : public c10d::Backend {
 public:
  ShmBackend(std::unique_ptr<SymmetricMemory> memory, std::vector<std::int64_t> names,
             BackendRequest request)
      : Backend(request.index, request.size),
        memory_(std::move(memory)),
        calls_(*memory_, std::move(names), request.timeout),
        request_(std::move(request)),
        thread_([this] { work(); }) {}

  ~ShmBackend() override {
    {
      const std::scoped_lock lock(mutex_);
      closing_ = true;
    }
    abort();
    came_.notify_all();
    thread_.join();
  }
  ShmBackend(const ShmBackend&) = delete;
  ShmBackend& operator=(const ShmBackend&) = delete;

  const std::string getBackendName() const override { return "shm"; }

  /// Calls that are under way, here and on the other ranks, end with an error.
  void abort() override { memory_->close("its group was closed"); }
  void shutdown() override { abort(); }

  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override {
    if (out.nbytes() != in.nbytes() * static_cast<std::size_t>(getSize())) {
      fail<ValueError>("all_gather", "pieces of ", in.nbytes(), " bytes from ", getSize(),
                       " ranks do not make ", out.nbytes(), " bytes");
    }
    return enqueue("all_gather", {in, out},
                   [=, this] { calls_.all_gather(memory_of(out), memory_of(in)); });
  }

  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_counts,
                        std::vector<std::int64_t>& in_counts,
                        const c10d::AllToAllOptions&) override {
    constexpr std::string_view call = "all_to_all";
    check_tensor(call, out);
    check_tensor(call, in);
    const std::vector<Bytes> from = parts_of(call, in, in_counts, getSize());
    return enqueue(
        call, {in, out},
        [=, this, to = parts_of(call, out, out_counts, getSize()), keep = Tensors{in, out}] {
          calls_.all_to_all(to, {from.begin(), from.end()});
        });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return enqueue("broadcast", tensors, [this, t = tensors[0], root = options.rootRank] {
      calls_.broadcast(memory_of(t), static_cast<int>(root));
    });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    const Placement how = placement_of("all_reduce", options.reduceOp);
    return enqueue("all_reduce", tensors, [this, t = tensors[0], how] {
      calls_.all_reduce(memory_of(t), t.scalar_type(), how);
    });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& options) override {
    const Placement how = placement_of("reduce_scatter", options.reduceOp);
    if (in.nbytes() != out.nbytes() * static_cast<std::size_t>(getSize())) {
      fail<ValueError>("reduce_scatter", in.nbytes(), " bytes are not ", getSize(), " parts of ",
                       out.nbytes(), " bytes");
    }
    return enqueue("reduce_scatter", {in, out}, [=, this] {
      calls_.reduce_scatter(memory_of(out), memory_of(in), out.scalar_type(), how);
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return enqueue("barrier", {}, [this] { calls_.barrier(); });
  }

  // Messages between two ranks concern the others in nothing, and go by Gloo.
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return messages().send(tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return messages().recv(tensors, from, tag);
  }

 private:
  WorkPtr enqueue(std::string_view call, const Tensors& tensors, std::function<void()> run) {
    for (const at::Tensor& t : tensors) check_tensor(call, t);
    auto work = c10::make_intrusive<ShmWork>(std::move(run));
    {
      const std::scoped_lock lock(mutex_);
      queue_.push_back(work);
    }
    came_.notify_one();
    return work;
  }

  void work() {
    std::exception_ptr error;  // of the first call that failed; none after it can be made
    while (true) {
      c10::intrusive_ptr<ShmWork> next;
      {
        std::unique_lock lock(mutex_);
        came_.wait(lock, [this] { return closing_ || !queue_.empty(); });
        if (queue_.empty()) return;
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      if (!error) error = try_to(*next);
      next->end(error);
    }
  }

  std::exception_ptr try_to(ShmWork& work) {
    try {
      work.run();
      return nullptr;
    } catch (const std::exception& error) {
      memory_->close(text_of(error));  // the others learn why this rank does not come
      return std::current_exception();
    }
  }

  /// Made on first use, by those who send or get something.
  c10d::Backend& messages() {
    const std::scoped_lock lock(messages_mutex_);
    if (!messages_) {
      BackendRequest request = request_;
      request.store = c10::make_intrusive<c10d::PrefixStore>("messages", request.store);
      request.lazy = true;
      messages_ = make_gloo(request);
    }
    return *messages_;
  }

  std::unique_ptr<SymmetricMemory> memory_;
  SharedCollectives calls_;
  BackendRequest request_;
  std::mutex messages_mutex_;
  intarsia::Backend messages_;
  std::mutex mutex_;
  std::condition_variable came_;
  bool closing_ = false;
  std::deque<c10::intrusive_ptr<ShmWork>> queue_;
  std::thread thread_;
};

}  // namespace

Backend make_shm(const BackendRequest& request) {
  if (!request.device.is_cpu()) {
    fail<UnsupportedError>("World", "shared memory moves tensors of the CPU, and this world is on ",
                           request.device.str(), "; use the backend nccl for CUDA");
  }
  std::vector<std::int64_t> names = request.ranks;
  for (int r = 0; r < request.size && request.ranks.empty(); ++r) names.push_back(r);
  auto memory = make_host_memory(request.store, request.index, request.size,
                                 SharedCollectives::bytes(), {request.timeout, names});
  if (!memory) return make_gloo(request);  // all ranks see the same hosts, so all come here
  return c10::make_intrusive<ShmBackend>(std::move(memory), std::move(names), request);
}

}  // namespace intarsia
