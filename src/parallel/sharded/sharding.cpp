#include "parallel/sharded/sharding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/core/translating.h"

namespace intarsia {
namespace {

bool contains(const std::vector<GroupIndex>& list, GroupIndex g) {
  return std::find(list.begin(), list.end(), g) != list.end();
}

std::optional<GroupIndex> element(const std::vector<GroupIndex>& list, std::size_t position) {
  return position < list.size() ? std::optional(list[position]) : std::nullopt;
}

std::vector<std::unique_ptr<ShardGroup>> made_of(std::vector<ParameterGroup> groups,
                                                 const FullyShardOptions& options, World& world,
                                                 const Mesh& mesh) {
  std::vector<std::unique_ptr<ShardGroup>> out;
  for (ParameterGroup& group : groups) {
    out.push_back(std::make_unique<ShardGroup>(std::move(group), options, world, mesh));
  }
  return out;
}

/// What groups did; times are means of the steps after the first.
std::vector<GroupReport> reports_of(const std::vector<std::unique_ptr<ShardGroup>>& groups,
                                    std::uint64_t steps) {
  std::vector<GroupReport> out;
  for (const auto& group : groups) {
    GroupReport report = group->report();
    if (steps > 1) report.exposed /= static_cast<double>(steps - 1);
    out.push_back(std::move(report));
  }
  return out;
}

/// Those of which some rank has gradients: one small reduction asks.
std::vector<GroupIndex> used_by_any(const std::vector<GroupIndex>& asked,
                                    const std::vector<std::unique_ptr<ShardGroup>>& groups,
                                    World& world, const Mesh& mesh,
                                    const FullyShardOptions& options) {
  std::vector<std::string> axes = options.replicate;
  axes.insert(axes.end(), options.shard.begin(), options.shard.end());
  const Comm comm = world.along(mesh, axes);
  std::vector<int> has_any;
  for (const GroupIndex g : asked) has_any.push_back(groups[g]->gradients().has_any() ? 1 : 0);
  const at::Tensor used = at::tensor(has_any, at::kInt);
  const std::vector<at::Tensor> mine(comm.members().size(), used.to(world.piece_device()));
  LedgerTotals sent;
  const Call call{.tensor = "used groups", .op = "fully_shard", .sent = &sent};
  const auto all = all_reduce(comm, mine, Placement::partial(Reduction::sum), call).wait();
  TensorState::of(world).bill().charge_own(call.op, std::string(call.tensor), join(axes, ","),
                                           "P->R", sent, /*backward=*/true);
  if (all.empty()) return {};
  const at::Tensor counts = world.simulated() ? used : all[0].to(at::kCPU);
  std::vector<GroupIndex> out;
  for (std::size_t k = 0; k < asked.size(); ++k) {
    if (counts.const_data_ptr<int>()[k] > 0) out.push_back(asked[k]);
  }
  return out;
}

}  // namespace

Sharding::Sharding(std::vector<ParameterGroup> groups, const FullyShardOptions& options,
                   std::shared_ptr<World> world, const Mesh& mesh)
    : options_(options),
      world_(std::move(world)),
      mesh_(mesh),
      groups_(made_of(std::move(groups), options, *world_, mesh)),
      orders_(groups_.size()),
      gathers_(groups_),
      reductions_(groups_, orders_) {
  for (Index g = 0; g < groups_.size(); ++g) {
    for (std::size_t i = 0; i < groups_[g]->parameters().size(); ++i) places_.emplace_back(g, i);
  }
}

void Sharding::attach() {
  for (std::size_t k = 0; k < places_.size(); ++k) {
    const auto [g, i] = places_[k];
    const at::Tensor parameter = groups_[g]->parameters()[i].lock();
    impl_of(parameter).need_extra().on_use =
        std::make_unique<OnUse>(OnUse{.source = shared_from_this(), .index = k});
  }
}

std::vector<at::Tensor> Sharding::parameters() const {
  std::vector<at::Tensor> out;
  for (const auto& [g, i] : places_) out.push_back(groups_[g]->parameters()[i].lock());
  return out;
}

at::Tensor Sharding::in_use(std::size_t index) {
  const std::scoped_lock lock(mutex_);
  const auto [g, i] = places_[index];
  if (held_) {
    use(g);  // gathers it again where it was written to
  } else if (gathers_.current() != g || rounds_.has_failed()) {
    enter(g);
  }
  return groups_[g]->used(i);
}

Layout Sharding::layout_in_use(std::size_t index) const {
  const auto [g, i] = places_[index];
  return groups_[g]->parameters()[i].used->layout;
}

void Sharding::written(std::size_t index) {
  const std::scoped_lock lock(mutex_);
  ++writes_;
  gathers_.drop(places_[index].first);
}

void Sharding::finish() {
  const std::scoped_lock lock(mutex_);
  if (rounds_.has_failed()) leave_failed_backward();
  end_backward();
}

void Sharding::release() {
  const std::scoped_lock lock(mutex_);
  gathers_.drop_all();
}

void Sharding::hold() {
  const std::scoped_lock lock(mutex_);
  const BelowAutograd below;
  if (rounds_.has_failed()) leave_failed_backward();
  if (rounds_.is_open() || (running_ && trains_)) {
    fail<ValueError>("fully_shard",
                     "hold() comes between a forward and its backward; call it before the forward");
  }
  if (running_) finish_phase();  // of an evaluation
  held_ = keeps_ = true;
  for (Index g = 0; g < groups_.size(); ++g) gathers_.gather(g);
}

void Sharding::let_go() {
  const std::scoped_lock lock(mutex_);
  held_ = false;
  keeps_ = reductions_.has_any();
  gathers_.drop_all();
}

void Sharding::forget() {
  const std::scoped_lock lock(mutex_);
  if (keeps_) reductions_.forget();
  let_go();
}

void Sharding::reduce() {
  const std::scoped_lock lock(mutex_);
  const BelowAutograd below;
  keeps_ = false;
  reductions_.reduce_kept();
}

std::size_t Sharding::gathered() const {
  const std::scoped_lock lock(mutex_);
  return gathers_.live();
}

bool Sharding::set_sync(bool on) {
  const std::scoped_lock lock(mutex_);
  return std::exchange(sync_, on);
}

std::vector<GroupReport> Sharding::groups() const {
  const std::scoped_lock lock(mutex_);
  return reports_of(groups_, steps_);
}

// ---- gathering ---------------------------------------------------------------------------------

std::optional<std::size_t> Sharding::position_of(Index g) const {
  const std::vector<Index>& order = orders_.gathers(phase_);
  const auto at = std::find(order.begin() + static_cast<std::ptrdiff_t>(next_), order.end(), g);
  if (at == order.end()) return std::nullopt;
  return static_cast<std::size_t>(at - order.begin());
}

/// Makes a group the one in use.
void Sharding::use(Index g) {
  gathers_.gather(g);
  gathers_.complete(g, orders_.learning());
  gathers_.set_current(g);
}

/// Makes the group at a position the one in use, and sees to the next. Ranks that do not use it
/// take part in its gather all the same.
void Sharding::step_to(std::size_t position, bool used) {
  const std::vector<Index>& order = orders_.gathers(phase_);
  const Index g = order[position];
  const bool last = position + 1 == order.size();
  auto following = element(order, position + 1);
  if (last && phase_ == Phase::forward && trains_) {
    following = element(orders_.gathers(Phase::backward), 0);
  }
  const bool keeps = options_.keep_after_forward && phase_ == Phase::forward;
  if (!keeps) gathers_.keep_only(g, following);
  next_ = position + 1;
  if (used) {
    use(g);
  } else {
    gathers_.gather(g);
    gathers_.set_current(std::nullopt);
  }
  if (following && options_.prefetch && !orders_.learning()) gathers_.gather(*following);
}

/// Gathers what other ranks may use before the phase ends.
void Sharding::finish_phase() {
  for (const std::size_t end = orders_.gathers(phase_).size(); next_ < end;) step_to(next_, false);
  begin_phase(phase_);
}

void Sharding::begin_phase(Phase phase) {
  phase_ = phase;
  running_ = false;
  next_ = 0;
}

void Sharding::enter(Index g) {
  const BelowAutograd below;
  if (rounds_.has_failed()) leave_failed_backward();
  const Phase now =
      torch::autograd::get_current_node() != nullptr ? Phase::backward : Phase::forward;
  if (now == Phase::backward) watch_backward();
  if (now != phase_) {
    if (running_ && phase_ == Phase::forward) finish_phase();
    phase_ = now;
    next_ = 0;
  }
  orders_.saw_use(now, g);
  auto at = position_of(g);
  if (!at && now == Phase::forward && running_ && contains(orders_.gathers(Phase::forward), g)) {
    finish_phase();  // a new pass
    at = position_of(g);
  }
  if (!running_ && now == Phase::forward) trains_ = at::GradMode::is_enabled();
  running_ = true;
  if (!at) {
    // Used once more than expected: every rank that comes here does so at the same point.
    const auto prefetched = element(orders_.gathers(now), next_);
    if (!options_.keep_after_forward) gathers_.keep_only(g, prefetched);
    return use(g);
  }
  while (next_ < *at) step_to(next_, false);
  step_to(*at, true);
}

// ---- reducing ----------------------------------------------------------------------------------

void Sharding::take_gradient(std::size_t index, const at::Tensor& gradient) {
  const std::scoped_lock lock(mutex_);
  const auto [g, i] = places_[index];
  if (keeps_) return groups_[g]->gradients().take(i, gradient);
  begin_backward();
  GroupGradients& gradients = groups_[g]->gradients();
  gradients.take(i, gradient);
  if (!sync_ || !gradients.is_ready()) return;
  orders_.saw_ready(g);
  reductions_.launch_ready();
}

/// The first use of a parameter, or the first gradient, in a backward asks to be told of its end.
void Sharding::watch_backward() {
  rounds_.watch([self = shared_from_this()](int task) {
    translating([&] {
      const std::scoped_lock lock(self->mutex_);
      self->backward_ended(task);
    });
  });
}

void Sharding::backward_ended(int task) {
  if (!rounds_.is_open(task)) return rounds_.forget(task);
  if (BackwardRounds::is_nested()) {
    fail<ValueError>("fully_shard",
                     "a backward inside a backward gave gradients, as checkpointing with "
                     "use_reentrant=True does; use use_reentrant=False");
  }
  end_backward();
}

void Sharding::begin_backward() {
  if (rounds_.is_current()) return;
  if (rounds_.is_open()) leave_failed_backward();
  watch_backward();
  for (const auto& group : groups_) group->gradients().drop_kept();
  rounds_.open();
  reductions_.begin();
}

/// The backward before this ended with an error, with some gradients reduced and some not: all are
/// dropped, with what they were added to. Where ranks failed alike, none waits for another, and all
/// begin again.
void Sharding::leave_failed_backward() {
  if (!broken_.empty()) fail<WorldError>("fully_shard", broken_);
  if (!world_->in_lockstep() && !world_->simulated()) {
    try {
      meet_after_failure(*world_, mesh_,
                         {.gathers = gathers_.begun(),
                          .reductions = reductions_.begun(),
                          .finished = reductions_.ended()});
    } catch (const WorldError& error) {
      broken_ = error.what();
      throw;
    }
  }
  reductions_.forget();
  gathers_.drop_all();
  rounds_.close();
  begin_phase(Phase::forward);
  orders_.forget();
}

void Sharding::end_backward() {
  const BelowAutograd below;
  // A rank that skipped all groups but the first uses none in backward, where others do. In the
  // first step of a single group all ranks are alike, and need it no more.
  const bool others_use = groups_.size() > 1 || !orders_.learning();
  if (phase_ == Phase::forward && running_ && trains_ && others_use) {
    finish_phase();
    phase_ = Phase::backward;
    running_ = true;
  }
  if (phase_ == Phase::backward && running_) finish_phase();
  if (sync_) {
    reductions_.finish([&](const std::vector<Index>& groups) {
      return used_by_any(groups, groups_, *world_, mesh_, options_);
    });
  } else {
    for (const auto& group : groups_) group->gradients().keep();
  }
  reductions_.begin();
  rounds_.close();
  gathers_.drop_all();
  begin_phase(Phase::forward);
  if (orders_.learning()) orders_.agree(*world_, mesh_);
  ++steps_;
}

}  // namespace intarsia
