#include "world/transport/in_process_backend.h"

#include <ATen/ATen.h>

#include <array>
#include <cstring>
#include <thread>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/transport/c10d_reductions.h"
#include "world/transport/error_text.h"
#include "world/transport/reductions.h"

namespace intarsia {
namespace {

using Share = Meeting::Share;
using Shares = std::vector<Share>;

class InProcessWork final : public c10d::Work {
 public:
  InProcessWork(std::shared_ptr<Meeting> meeting, std::shared_ptr<Hub> hub, std::string what,
                std::chrono::milliseconds timeout)
      : meeting_(std::move(meeting)),
        hub_(std::move(hub)),
        what_(std::move(what)),
        timeout_(timeout) {}

  bool isCompleted() override {
    const std::scoped_lock lock(meeting_->mutex);
    return meeting_->done;
  }

  bool isSuccess() const override {
    const std::scoped_lock lock(meeting_->mutex);
    return meeting_->done && meeting_->error.empty();
  }

  bool wait(std::chrono::milliseconds timeout) override {
    const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
    std::unique_lock lock(meeting_->mutex);
    if (!meeting_->changed.wait_for(lock, limit, [this] { return meeting_->done; })) {
      if (meeting_->dropped) {
        fail<WorldError>(what_, "group ", hub_->name(),
                         ": this call was dropped by the fault hook");
      }
      fail<WorldError>(what_, "group ", hub_->name(), " waited ", limit.count(), " ms for rank ",
                       absent(), ", which did not come");
    }
    if (!meeting_->error.empty()) throw WorldError(meeting_->error);
    return true;
  }

 private:
  std::string absent() const {
    std::vector<std::int64_t> ranks;
    for (std::size_t i = 0; i < meeting_->shares.size(); ++i) {
      if (meeting_->shares[i].here) continue;
      // A message has two shares, of its sender and its receiver, which name each other.
      ranks.push_back(meeting_->is_message ? meeting_->shares[1 - i].root : hub_->world_rank(i));
    }
    return join(ranks, ", ");
  }

  std::shared_ptr<Meeting> meeting_;
  std::shared_ptr<Hub> hub_;
  std::string what_;
  std::chrono::milliseconds timeout_;
};

Reduction reduction_of(const c10d::ReduceOp& op) {
  for (const ReductionOfC10d& r : kReductionsOfC10d) {
    if (r.op == op.op_) return r.reduction;
  }
  fail<UnsupportedError>("in_process", "this reduction is not supported");
}

/// The reduction of tensor `i` of all ranks, in the order of ranks.
at::Tensor reduced(const Shares& shares, std::size_t i, const c10d::ReduceOp& op) {
  const Reduction how = reduction_of(op);
  at::Tensor value = shares[0].in[i].clone();
  for (std::size_t r = 1; r < shares.size(); ++r) combine_into(value, shares[r].in[i], how);
  if (how == Reduction::avg) value.div_(static_cast<std::int64_t>(shares.size()));
  return value;
}

/// Copies `count` elements between flat positions. Both tensors are contiguous and of one dtype.
void put(const at::Tensor& to, std::int64_t to_begin, const at::Tensor& from,
         std::int64_t from_begin, std::int64_t count) {
  if (count == 0) return;
  if (to.is_cpu() && from.is_cpu()) {
    const auto size = static_cast<std::int64_t>(to.element_size());
    std::memcpy(static_cast<char*>(to.mutable_data_ptr()) + to_begin * size,
                static_cast<const char*>(from.const_data_ptr()) + from_begin * size,
                static_cast<std::size_t>(count * size));
    return;
  }
  to.view(-1).narrow(0, to_begin, count).copy_(from.view(-1).narrow(0, from_begin, count));
}

void put(const at::Tensor& to, const at::Tensor& from) {
  TORCH_CHECK(to.numel() == from.numel() && to.scalar_type() == from.scalar_type(),
              "ranks brought tensors of different sizes: ", to.sizes(), " and ", from.sizes());
  if (to.is_contiguous() && from.is_contiguous()) return put(to, 0, from, 0, to.numel());
  to.view(-1).copy_(from.reshape(-1));
}

Share share(std::string_view kind, std::vector<at::Tensor> in, std::vector<at::Tensor> out,
            std::int64_t root = 0) {
  const at::Tensor& any = in.empty() ? (out.empty() ? at::Tensor() : out[0]) : in[0];
  const char* dtype = any.defined() ? c10::toString(any.scalar_type()) : "nothing";
  return {true, kind, std::move(in), std::move(out), root, dtype, {}, {}};
}

Share reducing(Share s, const c10d::ReduceOp& op) {
  constexpr std::array<std::string_view, 9> names{"sum", "avg", "product", "min",       "max",
                                                  "and", "or",  "xor",     "premul_sum"};
  const auto i = static_cast<std::size_t>(op.op_);
  s.detail += concat(" by ", i < names.size() ? names[i] : "another reduction");
  return s;
}

}  // namespace

// ---- Hub ----------------------------------------------------------------------------------------

std::shared_ptr<Meeting> Hub::meeting(const std::string& key, bool is_message) {
  const std::scoped_lock lock(mutex_);
  if (!aborted_.empty()) throw WorldError(aborted_);
  auto& found = open_[key];
  if (!found) found = std::make_shared<Meeting>(is_message ? 2 : size(), is_message);
  return found;
}

void Hub::forget(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  open_.erase(key);
}

void Hub::abort(const std::string& error) {
  std::map<std::string, std::shared_ptr<Meeting>> open;
  {
    const std::scoped_lock lock(mutex_);
    if (!aborted_.empty()) return;
    aborted_ = error;
    open.swap(open_);
  }
  for (auto& [key, meeting] : open) {
    const std::scoped_lock lock(meeting->mutex);
    if (meeting->done) continue;
    meeting->error = error;
    meeting->done = true;
    meeting->changed.notify_all();
  }
}

// ---- meeting ------------------------------------------------------------------------------------

InProcessBackend::InProcessBackend(std::shared_ptr<Hub> hub, int index,
                                   const InProcessOptions& options)
    : Backend(index, static_cast<int>(hub->size())), hub_(std::move(hub)), options_(options) {}

bool InProcessBackend::dropped(std::string_view kind) {
  const std::uint64_t sequence = calls_++;
  if (!options_.fault) return false;
  const std::int64_t rank = hub_->world_rank(static_cast<std::size_t>(getRank()));
  const Fault fault = options_.fault({rank, hub_->name(), sequence, kind});
  if (fault.delay.count() > 0) std::this_thread::sleep_for(fault.delay);
  if (!fault.fail.empty()) {
    const std::string error =
        concat('[', kind, "] rank ", rank, " of group ", hub_->name(), " failed: ", fault.fail);
    hub_->abort(error);
    throw WorldError(error);
  }
  return fault.drop;
}

InProcessBackend::WorkPtr InProcessBackend::meet(Share share, const Meeting::Action& action) {
  return meet(concat(collectives_++), static_cast<std::size_t>(getRank()), false, std::move(share),
              action);
}

InProcessBackend::WorkPtr InProcessBackend::meet(const std::string& key, std::size_t place,
                                                 bool is_message, Share share,
                                                 const Meeting::Action& action) {
  const std::string kind(share.kind);
  const bool alone = dropped(kind);  // at a meeting that nobody else will come to
  const auto meeting = alone ? std::make_shared<Meeting>(is_message ? 2 : hub_->size(), is_message)
                             : hub_->meeting(key, is_message);
  const std::scoped_lock lock(meeting->mutex);
  meeting->dropped = alone;
  meeting->shares[place] = std::move(share);
  if (++meeting->arrived == meeting->shares.size() && !alone) {
    hub_->forget(key);
    hold(*meeting, action);
  }
  return c10::make_intrusive<InProcessWork>(meeting, hub_, kind, options_.timeout);
}

void InProcessBackend::hold(Meeting& meeting, const Meeting::Action& action) {
  try {
    const std::string_view kind = meeting.shares[0].kind;
    const auto text = [](const Share& s) {
      return concat(s.kind, " of ", s.detail, ", root ", s.root);
    };
    for (std::size_t r = 1; r < meeting.shares.size() && !meeting.is_message; ++r) {
      if (text(meeting.shares[r]) == text(meeting.shares[0])) continue;
      fail<WorldError>(kind, "group ", hub_->name(), ": rank ", hub_->world_rank(0), " called ",
                       text(meeting.shares[0]), ", but rank ", hub_->world_rank(r), " called ",
                       text(meeting.shares[r]));
    }
    action(meeting.shares);
  } catch (const std::exception& error) {
    meeting.error = text_of(error);
  }
  for (Share& s : meeting.shares) s = Share{};  // let the tensors go
  meeting.done = true;
  meeting.changed.notify_all();
}

// ---- collectives --------------------------------------------------------------------------------

InProcessBackend::WorkPtr InProcessBackend::allreduce(Tensors& tensors,
                                                      const c10d::AllreduceOptions& options) {
  return meet(reducing(share("all_reduce", tensors, tensors), options.reduceOp),
              [op = options.reduceOp](Shares& all) {
                for (std::size_t i = 0; i < all[0].in.size(); ++i) {
                  const at::Tensor value = reduced(all, i, op);
                  for (Share& s : all) put(s.out[i], value);
                }
              });
}

InProcessBackend::WorkPtr InProcessBackend::reduce(Tensors& tensors,
                                                   const c10d::ReduceOptions& options) {
  return meet(reducing(share("reduce", tensors, tensors, options.rootRank), options.reduceOp),
              [op = options.reduceOp](Shares& all) {
                put(all[static_cast<std::size_t>(all[0].root)].out[0], reduced(all, 0, op));
              });
}

InProcessBackend::WorkPtr InProcessBackend::broadcast(Tensors& tensors,
                                                      const c10d::BroadcastOptions& options) {
  return meet(share("broadcast", tensors, tensors, options.rootRank), [](Shares& all) {
    const Share& root = all[static_cast<std::size_t>(all[0].root)];
    for (Share& s : all) {
      if (&s != &root) put(s.out[0], root.in[0]);
    }
  });
}

InProcessBackend::WorkPtr InProcessBackend::allgather(std::vector<Tensors>& out, Tensors& in,
                                                      const c10d::AllgatherOptions&) {
  return meet(share("all_gather", in, out[0]), [](Shares& all) {
    for (Share& s : all) {
      for (std::size_t r = 0; r < all.size(); ++r) put(s.out[r], all[r].in[0]);
    }
  });
}

InProcessBackend::WorkPtr InProcessBackend::_allgather_base(at::Tensor& out, at::Tensor& in,
                                                            const c10d::AllgatherOptions&) {
  return meet(share("all_gather", {in}, {out}), [](Shares& all) {
    const std::int64_t each = all[0].in[0].numel();
    for (std::size_t r = 0; r < all.size(); ++r) {
      TORCH_CHECK(all[r].in[0].numel() == each &&
                      all[r].out[0].numel() == each * static_cast<std::int64_t>(all.size()),
                  "all_gather: rank ", r, " of the group brought ", all[r].in[0].numel(),
                  " elements, rank 0 brought ", each);
    }
    for (Share& s : all) {
      for (std::size_t r = 0; r < all.size(); ++r) {
        put(s.out[0], static_cast<std::int64_t>(r) * each, all[r].in[0], 0, each);
      }
    }
  });
}

InProcessBackend::WorkPtr InProcessBackend::gather(std::vector<Tensors>& out, Tensors& in,
                                                   const c10d::GatherOptions& options) {
  return meet(share("gather", in, out.empty() ? Tensors{} : out[0], options.rootRank),
              [](Shares& all) {
                Share& root = all[static_cast<std::size_t>(all[0].root)];
                for (std::size_t r = 0; r < all.size(); ++r) put(root.out[r], all[r].in[0]);
              });
}

InProcessBackend::WorkPtr InProcessBackend::scatter(Tensors& out, std::vector<Tensors>& in,
                                                    const c10d::ScatterOptions& options) {
  return meet(share("scatter", in.empty() ? Tensors{} : in[0], out, options.rootRank),
              [](Shares& all) {
                const Share& root = all[static_cast<std::size_t>(all[0].root)];
                for (std::size_t r = 0; r < all.size(); ++r) put(all[r].out[0], root.in[r]);
              });
}

InProcessBackend::WorkPtr InProcessBackend::reduce_scatter(
    Tensors& out, std::vector<Tensors>& in, const c10d::ReduceScatterOptions& options) {
  return meet(reducing(share("reduce_scatter", in[0], out), options.reduceOp),
              [op = options.reduceOp](Shares& all) {
                for (std::size_t r = 0; r < all.size(); ++r)
                  put(all[r].out[0], reduced(all, r, op));
              });
}

InProcessBackend::WorkPtr InProcessBackend::_reduce_scatter_base(
    at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& options) {
  std::vector<Tensors> parts{in.view({getSize(), -1}).unbind(0)};
  Tensors list{out};
  return reduce_scatter(list, parts, options);
}

InProcessBackend::WorkPtr InProcessBackend::alltoall(Tensors& out, Tensors& in,
                                                     const c10d::AllToAllOptions&) {
  return meet(share("all_to_all", in, out), [](Shares& all) {
    for (std::size_t to = 0; to < all.size(); ++to) {
      for (std::size_t from = 0; from < all.size(); ++from)
        put(all[to].out[from], all[from].in[to]);
    }
  });
}

InProcessBackend::WorkPtr InProcessBackend::alltoall_base(at::Tensor& out, at::Tensor& in,
                                                          std::vector<std::int64_t>& out_counts,
                                                          std::vector<std::int64_t>& in_counts,
                                                          const c10d::AllToAllOptions&) {
  Share mine = share("all_to_all", {in}, {out});
  const auto n = static_cast<std::size_t>(getSize());
  mine.in_counts =
      in_counts.empty() ? std::vector<std::int64_t>(n, in.numel() / getSize()) : in_counts;
  mine.out_counts =
      out_counts.empty() ? std::vector<std::int64_t>(n, out.numel() / getSize()) : out_counts;
  return meet(std::move(mine), [](Shares& all) {
    std::vector<std::int64_t> sent(all.size(), 0);  // by each rank so far
    for (std::size_t to = 0; to < all.size(); ++to) {
      std::int64_t received = 0;
      for (std::size_t from = 0; from < all.size(); ++from) {
        const std::int64_t count = all[from].in_counts[to];
        TORCH_CHECK(count == all[to].out_counts[from], "all_to_all: rank ", from,
                    " of the group sends ", count, " elements to rank ", to, ", which expects ",
                    all[to].out_counts[from]);
        put(all[to].out[0], received, all[from].in[0], sent[from], count);
        received += count;
        sent[from] += count;
      }
    }
  });
}

InProcessBackend::WorkPtr InProcessBackend::send(Tensors& tensors, int to, int tag) {
  const std::string channel = concat(getRank(), '>', to, '#', tag);
  return meet(concat(channel, ':', messages_[channel]++), 0, true,
              share("send", tensors, {}, hub_->world_rank(static_cast<std::size_t>(to))),
              [](Shares& pair) { put(pair[1].out[0], pair[0].in[0]); });
}

InProcessBackend::WorkPtr InProcessBackend::recv(Tensors& tensors, int from, int tag) {
  const std::string channel = concat(from, '>', getRank(), '#', tag);
  return meet(concat(channel, ':', messages_[channel]++), 1, true,
              share("recv", {}, tensors, hub_->world_rank(static_cast<std::size_t>(from))),
              [](Shares& pair) { put(pair[1].out[0], pair[0].in[0]); });
}

InProcessBackend::WorkPtr InProcessBackend::barrier(const c10d::BarrierOptions&) {
  return meet(share("barrier", {}, {}), [](Shares&) {});
}

}  // namespace intarsia
