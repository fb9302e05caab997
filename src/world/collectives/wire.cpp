#include "world/collectives/wire.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/waiting.h"
#include "world/transport/away.h"
#include "world/transport/c10d_reductions.h"
#include "world/transport/error_text.h"

namespace intarsia {
namespace {

c10d::ReduceOp reduce_op(Reduction how) {
  for (const ReductionOfC10d& r : kReductionsOfC10d) {
    if (r.reduction == how) return r.op;
  }
  fail<UnsupportedError>("reduce", "no backend reduces norms by itself");
}

bool is_bitwise(Reduction how) {
  return how == Reduction::bit_and || how == Reduction::bit_or || how == Reduction::bit_xor;
}

class C10dWire final : public Wire {
 public:
  C10dWire(c10::intrusive_ptr<c10d::Backend> backend, World& world, WireGroup group)
      : backend_(std::move(backend)),
        kind_(backend_->getBackendName()),
        ledger_(world.shared_ledger()),
        context_(std::make_shared<WireContext>(std::move(group.name), world.shared_ledger(),
                                               std::move(group.failed))),
        group_(group.in_ledger),
        held_(std::move(group.held)),
        device_(world.device()),
        timeout_(world.timeout()) {}

  ~C10dWire() override {
    const Away away;
    backend_.reset();  // ends what is under way
    const std::scoped_lock lock(context_->mutex);
    context_->abandoned.clear();
  }
  C10dWire(const C10dWire&) = delete;
  C10dWire& operator=(const C10dWire&) = delete;

  Works all_gather(at::TensorList out, at::TensorList in, CallSite site) override {
    at::Tensor to = out[0];
    at::Tensor from = in[0];
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    return call(CallKind::all_gather, from, site,
                [&] { return backend_->_allgather_base(to, from, options); });
  }

  Works all_reduce(at::TensorList inout, Reduction how, CallSite site) override {
    std::vector<at::Tensor> tensors{inout[0]};
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(how);
    options.timeout = timeout_;
    return call(
        CallKind::all_reduce, tensors[0], site,
        [&] { return backend_->allreduce(tensors, options); }, to_text(how));
  }

  Works reduce_scatter(at::TensorList out, at::TensorList in, Reduction how,
                       CallSite site) override {
    at::Tensor to = out[0];
    at::Tensor from = in[0];
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(how);
    options.timeout = timeout_;
    return call(
        CallKind::reduce_scatter, from, site,
        [&] { return backend_->_reduce_scatter_base(to, from, options); }, to_text(how));
  }

  Works all_to_all(at::TensorList out, at::TensorList in, const std::vector<Counts>& out_counts,
                   const std::vector<Counts>& in_counts, CallSite site) override {
    at::Tensor to = out[0];
    at::Tensor from = in[0];
    Counts to_counts = out_counts[0];
    Counts from_counts = in_counts[0];
    c10d::AllToAllOptions options;
    options.timeout = timeout_;
    return call(CallKind::all_to_all, from, site,
                [&] { return backend_->alltoall_base(to, from, to_counts, from_counts, options); });
  }

  Works broadcast(at::TensorList inout, std::int64_t root, CallSite site) override {
    std::vector<at::Tensor> tensors{inout[0]};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    return call(
        CallKind::broadcast, tensors[0], site,
        [&] { return backend_->broadcast(tensors, options); }, concat(root));
  }

  Works permute(at::TensorList out, at::TensorList in, const Counts& to, CallSite site) override {
    ledger_->begin(group_, "permute", site.dtype, join(to), site.call);
    const std::int64_t me = backend_->getRank();
    const std::int64_t target = to[static_cast<std::size_t>(me)];
    if (target == me) {
      at::Tensor(out[0]).copy_(in[0]);
      return {{}, context_};
    }
    const auto from = static_cast<int>(std::find(to.begin(), to.end(), me) - to.begin());
    std::vector<at::Tensor> sent{in[0]};
    std::vector<at::Tensor> received{out[0]};
    Works works{{}, context_, held_.lock()};
    // Both sides know the sizes, so nothing needs no message.
    if (received[0].numel() > 0) {
      works = part(CallKind::recv, received[0], site,
                   [&] { return backend_->recv(received, from, kPermuteTag); });
    }
    if (sent[0].numel() > 0) {
      const Works sends = part(CallKind::send, sent[0], site, [&] {
        return backend_->send(sent, static_cast<int>(target), kPermuteTag);
      });
      works.list.insert(works.list.end(), sends.list.begin(), sends.list.end());
    }
    return works;
  }

  Works barrier(CallSite site) override {
    c10d::BarrierOptions options;
    options.timeout = timeout_;
    if (!device_.is_cpu()) {
      options.device = device_;
      options.device_ids = {device_.index()};
    }
    return call(CallKind::barrier, {}, site, [&] { return backend_->barrier(options); });
  }

  bool reduces(at::ScalarType dtype, Reduction how) const override {
    if (how == Reduction::norm) return false;
    if (kind_ == "shm") return true;  // as here: in the order of ranks, halves in single precision
    if (how == Reduction::avg) return false;
    switch (dtype) {
      // Backends lose NaNs in min and max of floats; ATen keeps them.
      case at::kFloat:
      case at::kDouble:
        return how == Reduction::sum || how == Reduction::product;
      // Gloo adds halves in half precision, one after the other; we add them in single precision.
      case at::kHalf:
      case at::kBFloat16:
        return kind_ == "nccl" && how == Reduction::sum;
      case at::kInt:
      case at::kLong:
      case at::kByte:
      case at::kChar:
        return kind_ != "nccl" || !is_bitwise(how);
      default:
        return false;
    }
  }

  // Gloo's reduce-scatter was measured at half the speed of exchanging and adding locally, which
  // also adds in a fixed order and needs no padding.
  bool scatters_reduced(at::ScalarType dtype, Reduction how) const override {
    return (kind_ == "nccl" || kind_ == "shm") && reduces(dtype, how);
  }

 private:
  static constexpr int kPermuteTag = 0x1a7a;

  /// A collective of one call. `detail`: what else all ranks must agree on.
  template <class Start>
  Works call(CallKind kind, const at::Tensor& payload, CallSite site, const Start& backend_call,
             std::string_view detail = {}) {
    ledger_->record(group_, kind, site.dtype, bytes_of(payload), detail, site.call, site.where);
    return start(kind, backend_call);
  }

  /// One of the calls of a collective that was begun.
  template <class Start>
  Works part(CallKind kind, const at::Tensor& payload, CallSite site, const Start& backend_call) {
    ledger_->add_call(group_, kind, site.dtype, bytes_of(payload), site.call, site.where);
    return start(kind, backend_call);
  }

  static std::int64_t bytes_of(const at::Tensor& payload) {
    return payload.defined() ? static_cast<std::int64_t>(payload.nbytes()) : 0;
  }

  template <class Start>
  Works start(CallKind kind, const Start& backend_call) {
    const Away away;
    try {
      return {{backend_call()}, context_, held_.lock()};
    } catch (const std::exception& error) {
      context_->failed->store(true);
      fail<WorldError>(to_text(kind), "rank ", backend_->getRank(), " of group ", context_->group,
                       " (", kind_, ") could not start: ", text_of(error));
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string kind_;
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<WireContext> context_;
  std::uint32_t group_;
  std::weak_ptr<const void> held_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

std::unique_ptr<Wire> make_c10d_wire(c10::intrusive_ptr<c10d::Backend> backend, World& world,
                                     WireGroup group) {
  return std::make_unique<C10dWire>(std::move(backend), world, std::move(group));
}

void wait_for(const Works& works, std::string_view what) {
  const Away away;
  constexpr std::size_t kLastCalls = 8;
  if (!works.list.empty() && works.context->forks != forks()) {
    fail_in_fork(concat("the ", what, " over group ", works.context->group));
  }
  for (const auto& work : works.list) {
    try {
      work->wait();
    } catch (const std::exception& error) {
      works.context->failed->store(true);
      fail<WorldError>(what, "over group ", works.context->group,
                       " did not finish: ", text_of(error), "\nthe last calls of this rank:\n",
                       works.context->ledger->dump(kLastCalls));
    }
  }
}

}  // namespace intarsia
