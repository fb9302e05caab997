// The rounds of a replica: from a gradient to the average.
#include <algorithm>
#include <exception>

#include "base/text.h"
#include "intarsia/error.h"
#include "parallel/gradients/after_failure.h"
#include "parallel/replicate/replica_core.h"
#include "tensor/core/spec.h"
#include "tensor/move/state.h"
#include "world/collectives/flat.h"

namespace intarsia {
namespace {

/// The gradient as it is stored in the bucket: with the strides of the parameter where these have
/// no gaps, so that the update reads both alike. Autograd does not see it as a view: one may not
/// detach those in place, as `zero_grad` does.
at::Tensor place_in(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (like.is_non_overlapping_and_dense()) {
    return flat.as_strided(like.sizes(), like.strides(), offset);
  }
  return flat.narrow(0, offset, like.numel()).view(like.sizes());
}

}  // namespace

// ---- the way of a gradient ---------------------------------------------------------------------

void Replica::Core::came(std::size_t i, bool defined) {
  const std::scoped_lock lock(mutex_);
  Slot& slot = slots_[i];
  if (sends_nothing()) {
    slot.unsent = slot.unsent || defined;
    return;
  }
  begin_round();
  if (!defined) return;
  TORCH_INTERNAL_ASSERT(!slot.arrived, slot.name, " got two gradients in one backward");
  slot.unsent = true;
  prepare(buckets_[slot.bucket]);
  contribute(slot);
  if (!follows_order_) order_.push_back(i);
  communicating([&] { send_full(); });
}

void Replica::Core::begin_round() {
  if (rounds_.is_current()) return;
  check_usable();
  leave_failed_backward();
  rounds_.open();
  rounds_.watch([core = shared_from_this()](int /*task*/) {
    core->translated([&] { core->end_of_backward(); });
  });
}

/// A round that is open when another begins: its backward ended with an error. Where buckets had
/// been sent, all ranks must have failed alike. What gradients hold of it is the user's to clear.
void Replica::Core::leave_failed_backward() {
  if (!rounds_.is_open()) return;
  if (next_ > 0) {
    communicating([&] {
      meet_after_failure(*world_, Mesh::parse(comm_.name()),
                         {.reductions = static_cast<std::int64_t>(next_),
                          .finished = static_cast<std::int64_t>(counters_.rounds)});
    });
    for (Bucket& bucket : buckets_) bucket.sent.reset();
  }
  reset_round();
}

/// Runs what sends or waits. After a failure the others may never come: what is under way is left
/// to the group, and no further round begins.
template <class Function>
void Replica::Core::communicating(Function&& call) {
  struct Leave {
    ~Leave() {
      if (std::uncaught_exceptions() == before) return;
      for (Bucket& bucket : buckets) bucket.sent.reset();
    }
    std::vector<Bucket>& buckets;
    int before = std::uncaught_exceptions();
  };
  try {
    const Leave leave{buckets_};
    call();
  } catch (const WorldError& error) {
    broken_ = error.what();
    throw;
  }
}

void Replica::Core::check_usable() const {
  if (!broken_.empty()) {
    fail<WorldError>(kReplicate,
                     "a round before this failed; destroy this Replica, and begin anew on all "
                     "ranks, with another world if a rank was lost. The failure was: ",
                     broken_);
  }
  for (const NamedTensor& p : frozen_) {
    if (!p.tensor.requires_grad()) continue;
    fail<ValueError>(kReplicate, "parameter '", p.name,
                     "' was frozen when the module was replicated, and requires a gradient now, "
                     "which would not be averaged; destroy this Replica and call replicate again");
  }
}

void Replica::Core::prepare(Bucket& bucket) {
  if (bucket.flat.defined()) return;
  const auto n = static_cast<std::int64_t>(bucket.members.size());
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    bucket.flat = at::empty({bucket.elements + n}, bucket.options);
    bucket.used = bucket.flat.narrow(0, bucket.elements, n);
  }
  for (const std::size_t i : bucket.members) {
    slots_[i].view = place_in(bucket.flat, slots_[i].offset, slots_[i].parameter);
  }
}

void Replica::Core::contribute(Slot& slot) {
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (gradient.layout() != at::kStrided) {
    fail<UnsupportedError>(kReplicate, "the gradient of '", slot.name,
                           "' is sparse; make it dense (sparse=False in an embedding), or leave "
                           "the parameter out");
  }
  if (gradient.requires_grad()) {
    fail<UnsupportedError>(kReplicate, "the gradient of '", slot.name,
                           "' has a graph of its own (create_graph), which averaging would lose; "
                           "use torch::autograd::grad for gradients of gradients");
  }
  Bucket& bucket = buckets_[slot.bucket];
  const at::NoGradGuard no_grad;
  if (bucket.casts) {
    slot.view.copy_(gradient);
    slot.view.mul_(scale_);
    ++counters_.copies;
  } else if (gradient.is_same(slot.view)) {
    slot.view.mul_(scale_);
  } else {
    at::mul_out(slot.view, gradient, scale_tensor_);
    ++counters_.copies;
    gradient = slot.view;
  }
  slot.arrived = true;
  --bucket.missing;
}

/// What this rank adds where it has no new gradient: its part of the old one, which all ranks have
/// alike, or nothing.
void Replica::Core::contribute_unused(Slot& slot) {
  const at::Tensor& gradient = slot.parameter.grad();
  slot.unsent = slot.unsent && gradient.defined();
  if (slot.unsent) return contribute(slot);
  const at::NoGradGuard no_grad;
  if (!gradient.defined()) {
    slot.view.zero_();
  } else {
    if (gradient.is_same(slot.view)) slot.kept = gradient.clone();
    slot.view.copy_(gradient);
    slot.view.mul_(scale_);
  }
  slot.arrived = true;
  --buckets_[slot.bucket].missing;
}

void Replica::Core::send_full() {
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) send(buckets_[next_++]);
}

void Replica::Core::send(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  std::vector<float> used;
  for (const std::size_t i : bucket.members) used.push_back(slots_[i].unsent ? 1.0F : 0.0F);
  if (std::find(used.begin(), used.end(), 0.0F) == used.end()) {
    bucket.used.fill_(1);
  } else {
    bucket.used.copy_(at::tensor(used));
  }
  LedgerTotals sent;
  const Call call{.tensor = bucket.text, .op = kReplicate, .sent = &sent};
  bucket.sent = flat::sum(comm_, bucket.flat, {call, Where::current()});
  charge(bucket.text, "P->R", sent);
}

/// Waits for a bucket, and gives its gradients to the parameters.
void Replica::Core::receive(Bucket& bucket) {
  const at::Tensor sum = bucket.sent->tensor();
  bucket.sent.reset();
  const at::NoGradGuard no_grad;
  if (!sum.is_same(bucket.flat)) bucket.flat.copy_(sum);
  // Only who used less than everything must look what others used.
  at::Tensor used;
  for (std::size_t m = 0; m < bucket.members.size(); ++m) {
    Slot& slot = slots_[bucket.members[m]];
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (!slot.unsent) {
      if (!used.defined()) used = bucket.used.to(at::kCPU, at::kDouble);
      if (!(used[static_cast<std::int64_t>(m)].item<double>() > 0)) {
        if (slot.kept.defined()) slot.view.copy_(slot.kept);
        continue;
      }
    }
    if (!bucket.casts) {
      gradient = slot.view;
    } else if (gradient.defined()) {
      gradient.copy_(slot.view);
    } else {
      gradient = at::empty_like(slot.parameter).copy_(slot.view);
    }
  }
}

// ---- the end of a round ------------------------------------------------------------------------

void Replica::Core::end_of_backward() {
  const std::scoped_lock lock(mutex_);
  if (BackwardRounds::is_nested()) {
    communicating([] {
      fail<UnsupportedError>(kReplicate,
                             "a backward ran within another one, whose end cannot be seen from "
                             "there; with torch.utils.checkpoint pass use_reentrant=False, else "
                             "run it within no_sync");
    });
  }
  run_round();
}

void Replica::Core::finish() {
  if (sends_nothing()) return;
  const std::scoped_lock lock(mutex_);
  check_usable();
  leave_failed_backward();
  run_round();
}

void Replica::Core::run_round() {
  for (Bucket& bucket : buckets_) {
    if (bucket.missing == 0) continue;
    prepare(bucket);
    for (const std::size_t i : bucket.members) {
      if (!slots_[i].arrived) contribute_unused(slots_[i]);
    }
  }
  communicating([&] {
    send_full();
    std::vector<BufferRound> sent_buffers = send_buffers();
    for (Bucket& bucket : buckets_) receive(bucket);
    for (BufferRound& r : sent_buffers) r.group->fill_from(r.sent.tensor());
    if (!follows_order_) follow_order();
  });
  for (Slot& slot : slots_) slot.unsent = false;
  ++counters_.rounds;
  reset_round();
}

auto Replica::Core::send_buffers() -> std::vector<BufferRound> {
  std::vector<BufferRound> round;
  for (const FlatGroup& group : buffers_) {
    const at::NoGradGuard no_grad;
    at::Tensor flat = group.joined();
    const bool averages =
        options_.buffers == BufferSync::averaged && (flat.is_floating_point() || flat.is_complex());
    const std::string text =
        concat("buffers, ", dtype_text(flat.scalar_type()), '[', flat.numel(), ']');
    LedgerTotals sent;
    const Call call{.tensor = text, .op = kReplicate, .sent = &sent};
    Pending moving = averages ? all_reduce(comm_, flat, Placement::partial(Reduction::avg), call)
                              : broadcast(comm_, flat, 0, call);
    charge(text, averages ? "P->R" : "R->R", sent);
    round.push_back({&group, std::move(moving)});
  }
  return round;
}

/// Makes the buckets anew, in the order in which gradients came on the first rank.
void Replica::Core::follow_order() {
  // How many came, which they were, and the rest as the buckets have them.
  std::vector<std::int64_t> mine{static_cast<std::int64_t>(order_.size())};
  std::vector<bool> seen(slots_.size());
  for (const std::size_t i : order_) seen[i] = true;
  for (const Bucket& bucket : buckets_) {
    for (const std::size_t i : bucket.members) {
      if (!seen[i]) order_.push_back(i);
    }
  }
  mine.insert(mine.end(), order_.begin(), order_.end());
  LedgerTotals sent;
  const Call call{.tensor = "the order of gradients", .op = kReplicate, .sent = &sent};
  const at::Tensor all = at::tensor(mine, at::kLong).to(world_->device());
  const at::Tensor first = broadcast(comm_, all, 0, call).tensor().cpu();
  charge(std::string(call.tensor), "R->R", sent);
  order_.clear();
  const auto* values = first.const_data_ptr<std::int64_t>();
  if (values[0] == 0) return;  // the first rank used nothing; the next round may tell
  follows_order_ = true;
  auto members = buckets_by(std::vector<std::size_t>(values + 1, values + first.numel()));
  const bool same = std::equal(
      members.begin(), members.end(), buckets_.begin(), buckets_.end(),
      [](const std::vector<std::size_t>& list, const Bucket& b) { return list == b.members; });
  if (!same) set_buckets(std::move(members));
}

void Replica::Core::reset_round() {
  for (Bucket& bucket : buckets_) bucket.missing = bucket.members.size();
  for (Slot& slot : slots_) {
    slot.arrived = false;
    slot.kept.reset();
  }
  next_ = 0;
  rounds_.close();
  if (!follows_order_) order_.clear();
}

/// Enters in the bill and in the counters what is sent.
void Replica::Core::charge(const std::string& text, std::string transition,
                           const LedgerTotals& sent) {
  TensorState::of(*world_).bill().charge_own(kReplicate, text, axis_, std::move(transition), sent,
                                             /*backward=*/true);
  ++counters_.collectives;
  counters_.bytes += sent.bytes;
}

}  // namespace intarsia
