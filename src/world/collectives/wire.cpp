#include "world/collectives/wire.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/guard/guarded_wait.h"
#include "world/guard/program.h"
#include "world/transport/away.h"
#include "world/transport/backends.h"
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

/// What profilers see from here to the end of the scope; the name is made only if one looks.
class Seen {
 public:
  template <class MakeName>
  explicit Seen(const MakeName& name) : function_(at::RecordScope::FUNCTION) {
    if (function_.isActive()) function_.before(name());
  }

 private:
  at::RecordFunction function_;
};

/// `intarsia::all_gather [g=2] #182`: the same on all members, and for the waiting of a rank.
std::string seen_name(std::string_view what, const WireContext& context, std::uint64_t number) {
  return concat("intarsia::", what, ' ', context.group, " #", number);
}

/// Whether all ranks hand over equally much: shorter pieces are filled up before they get here.
bool has_equal_bytes(CallKind kind) { return kind != CallKind::all_to_all; }

}  // namespace

Wire::Wire(c10::intrusive_ptr<c10d::Backend> backend, World& world, WireGroup group)
    : backend_(std::move(backend)),
      kind_(backend_->getBackendName()),
      reductions_(reductions_of(kind_)),
      in_slices_(waits_in_slices(kind_)),
      ledger_(world.shared_ledger()),
      context_(std::make_shared<WireContext>(std::move(group.name), world.shared_ledger(),
                                             std::move(group.failed), std::move(group.guard))),
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

std::uint64_t Wire::enter(std::string_view what, at::ScalarType dtype, std::int64_t bytes,
                          std::string_view detail, const Call& call) {
  if (!context_->guard) return 0;
  thread_local std::string words;  // keeps its memory
  words.assign(what);
  if (!detail.empty()) words.append(" (").append(detail).append(")");
  if (what != to_text(CallKind::barrier)) words.append(" of ").append(c10::toString(dtype));
  if (!call.tensor.empty()) words.append(" ").append(call.tensor);
  if (!call.made_by.empty()) words.append(" made by ").append(call.made_by);
  if (!call.op.empty()) words.append(" for ").append(call.op);
  try {
    return context_->guard->enter({words, bytes, call.module});
  } catch (const GuardError&) {
    context_->failed->store(true);
    throw;
  }
}

template <class Start>
Works Wire::call(CallKind kind, const at::Tensor& payload, at::ScalarType dtype, CallSite site,
                 const Start& backend_call, std::string_view detail) {
  const std::int64_t bytes = bytes_of(payload);
  ledger_->record(group_, kind, dtype, bytes, site.call, site.where);
  const std::uint64_t number =
      enter(to_text(kind), dtype, has_equal_bytes(kind) ? bytes : 0, detail, site.call);
  Works works = start(kind, backend_call, number, site.call);
  works.in_slices = in_slices_;
  return works;
}

template <class Start>
Works Wire::part(CallKind kind, const at::Tensor& payload, at::ScalarType dtype, CallSite site,
                 const Start& backend_call, std::uint64_t number) {
  ledger_->add_call(group_, kind, dtype, bytes_of(payload), site.call, site.where);
  return start(kind, backend_call, number, site.call);
}

template <class Start>
Works Wire::start(CallKind kind, const Start& backend_call, std::uint64_t number,
                  const Call& call) {
  const Away away;
  const Seen seen([&] {
    std::string name = seen_name(to_text(kind), *context_, number);
    for (const auto& [before, text] : {std::pair(" of ", call.tensor), std::pair(" for ", call.op),
                                       std::pair(" in ", call.module)}) {
      if (!text.empty()) name.append(before).append(text);
    }
    return name;
  });
  try {
    return {{backend_call()}, context_, held_.lock(), number};
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
  const std::string pairs = join(to);
  ledger_->begin(group_);
  const std::uint64_t number = enter("permute", dtype, 0, pairs, site.call);
  const std::int64_t me = backend_->getRank();
  const std::int64_t target = to[static_cast<std::size_t>(me)];
  if (target == me) {
    out.copy_(in);
    return {{}, context_};
  }
  const auto from = static_cast<int>(std::find(to.begin(), to.end(), me) - to.begin());
  std::vector<at::Tensor> sent{in};
  std::vector<at::Tensor> received{out};
  Works works{{}, context_, held_.lock(), number};
  // Both sides know the sizes, so nothing needs no message.
  if (received[0].numel() > 0) {
    works = part(
        CallKind::recv, received[0], dtype, site,
        [&] { return backend_->recv(received, from, kPermuteTag); }, number);
  }
  if (sent[0].numel() > 0) {
    const Works sends = part(
        CallKind::send, sent[0], dtype, site,
        [&] { return backend_->send(sent, static_cast<int>(target), kPermuteTag); }, number);
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

namespace {

/// Waits, and looks from time to time at what the other ranks do.
void wait_guarded(const Works& works, c10d::Work& work) {
  const GuardedGroup* guard = works.context->guard.get();
  if (guard == nullptr || !works.in_slices) {
    work.wait();
  } else {
    wait_in_slices(work, *guard, works.number);
  }
}

/// Throws what the guard knows of a call that failed, or what the backend says of it.
[[noreturn]] void fail_call(const Works& works, std::string_view what, std::string_view why) {
  constexpr std::size_t kLastCalls = 8;
  const WireContext& context = *works.context;
  std::string missing;
  if (context.guard) {
    context.guard->explain(works.number);
    missing = context.guard->missing(works.number);
  }
  fail<WorldError>(what, "over group ", context.group, " did not finish: ", missing,
                   missing.empty() ? "" : " (", why, missing.empty() ? "" : ")",
                   "\nthe last calls of this rank:\n", context.ledger->dump(kLastCalls));
}

}  // namespace

void wait_for(const Works& works, std::string_view what) {
  const Away away;
  if (works.list.empty()) return;
  const Waiting waiting;
  WireContext& context = *works.context;
  const Seen seen([&] { return seen_name("wait", context, works.number); });
  if (context.forks != forks()) {
    fail_in_fork(concat("the ", what, " over group ", context.group));
  }
  try {
    for (const auto& work : works.list) wait_guarded(works, *work);
    if (context.guard) context.guard->compare(works.number);
  } catch (const GuardError&) {
    context.failed->store(true);
    throw;
  } catch (const std::exception& error) {
    context.failed->store(true);
    fail_call(works, what, text_of(error));
  }
}

}  // namespace intarsia
