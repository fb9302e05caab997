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

constexpr int kPermuteTag = 0x1a7a;

std::int64_t bytes_of(const at::Tensor& payload) {
  return payload.defined() ? static_cast<std::int64_t>(payload.nbytes()) : 0;
}

}  // namespace

Wire::Wire(c10::intrusive_ptr<c10d::Backend> backend, World& world, WireGroup group)
    : backend_(std::move(backend)),
      kind_(backend_->getBackendName()),
      reductions_(reductions_of(kind_)),
      ledger_(world.shared_ledger()),
      context_(std::make_shared<WireContext>(std::move(group.name), world.shared_ledger(),
                                             std::move(group.failed))),
      group_(group.in_ledger),
      held_(std::move(group.held)),
      device_(world.device()),
      timeout_(world.timeout()) {}

Wire::~Wire() {
  const Away away;
  backend_.reset();  // ends what is under way
  const std::scoped_lock lock(context_->mutex);
  context_->abandoned.clear();
}

template <class Start>
Works Wire::call(CallKind kind, const at::Tensor& payload, at::ScalarType dtype, CallSite site,
                 const Start& backend_call, std::string_view detail) {
  ledger_->record(group_, kind, dtype, bytes_of(payload), detail, site.call, site.where);
  return start(kind, backend_call);
}

template <class Start>
Works Wire::part(CallKind kind, const at::Tensor& payload, at::ScalarType dtype, CallSite site,
                 const Start& backend_call) {
  ledger_->add_call(group_, kind, dtype, bytes_of(payload), site.call, site.where);
  return start(kind, backend_call);
}

template <class Start>
Works Wire::start(CallKind kind, const Start& backend_call) {
  const Away away;
  try {
    return {{backend_call()}, context_, held_.lock()};
  } catch (const std::exception& error) {
    context_->failed->store(true);
    fail<WorldError>(to_text(kind), "rank ", backend_->getRank(), " of group ", context_->group,
                     " (", kind_, ") could not start: ", text_of(error));
  }
}

Works Wire::all_gather(const at::Tensor& out, const at::Tensor& in, at::ScalarType dtype,
                       CallSite site) {
  at::Tensor to = out;
  at::Tensor from = in;
  c10d::AllgatherOptions options;
  options.timeout = timeout_;
  return call(CallKind::all_gather, from, dtype, site,
              [&] { return backend_->_allgather_base(to, from, options); });
}

Works Wire::all_reduce(const at::Tensor& inout, Reduction how, at::ScalarType dtype,
                       CallSite site) {
  std::vector<at::Tensor> tensors{inout};
  c10d::AllreduceOptions options;
  options.reduceOp = reduce_op(how);
  options.timeout = timeout_;
  return call(
      CallKind::all_reduce, tensors[0], dtype, site,
      [&] { return backend_->allreduce(tensors, options); }, to_text(how));
}

Works Wire::reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduction how,
                           at::ScalarType dtype, CallSite site) {
  at::Tensor to = out;
  at::Tensor from = in;
  c10d::ReduceScatterOptions options;
  options.reduceOp = reduce_op(how);
  options.timeout = timeout_;
  return call(
      CallKind::reduce_scatter, from, dtype, site,
      [&] { return backend_->_reduce_scatter_base(to, from, options); }, to_text(how));
}

Works Wire::all_to_all(const at::Tensor& out, const at::Tensor& in, const Counts& out_counts,
                       const Counts& in_counts, at::ScalarType dtype, CallSite site) {
  at::Tensor to = out;
  at::Tensor from = in;
  Counts to_counts = out_counts;
  Counts from_counts = in_counts;
  c10d::AllToAllOptions options;
  options.timeout = timeout_;
  return call(CallKind::all_to_all, from, dtype, site,
              [&] { return backend_->alltoall_base(to, from, to_counts, from_counts, options); });
}

Works Wire::broadcast(const at::Tensor& inout, std::int64_t root, at::ScalarType dtype,
                      CallSite site) {
  std::vector<at::Tensor> tensors{inout};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout_;
  return call(
      CallKind::broadcast, tensors[0], dtype, site,
      [&] { return backend_->broadcast(tensors, options); }, concat(root));
}

Works Wire::permute(const at::Tensor& out, const at::Tensor& in, const Counts& to,
                    at::ScalarType dtype, CallSite site) {
  ledger_->begin(group_, "permute", dtype, join(to), site.call);
  const std::int64_t me = backend_->getRank();
  const std::int64_t target = to[static_cast<std::size_t>(me)];
  if (target == me) {
    out.copy_(in);
    return {{}, context_};
  }
  const auto from = static_cast<int>(std::find(to.begin(), to.end(), me) - to.begin());
  std::vector<at::Tensor> sent{in};
  std::vector<at::Tensor> received{out};
  Works works{{}, context_, held_.lock()};
  // Both sides know the sizes, so nothing needs no message.
  if (received[0].numel() > 0) {
    works = part(CallKind::recv, received[0], dtype, site,
                 [&] { return backend_->recv(received, from, kPermuteTag); });
  }
  if (sent[0].numel() > 0) {
    const Works sends = part(CallKind::send, sent[0], dtype, site, [&] {
      return backend_->send(sent, static_cast<int>(target), kPermuteTag);
    });
    works.list.insert(works.list.end(), sends.list.begin(), sends.list.end());
  }
  return works;
}

Works Wire::barrier(CallSite site) {
  c10d::BarrierOptions options;
  options.timeout = timeout_;
  if (!device_.is_cpu()) {
    options.device = device_;
    options.device_ids = {device_.index()};
  }
  return call(CallKind::barrier, {}, at::kByte, site, [&] { return backend_->barrier(options); });
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
