#include "intarsia/fully_shard.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iomanip>
#include <mutex>
#include <set>
#include <sstream>

#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "parallel/model/after_failure.h"
#include "parallel/sharded/shard_group.h"
#include "tensor/core/translating.h"
#include "tensor/move/state.h"

namespace intarsia {
namespace {

using Index = std::uint32_t;
constexpr Index kNone = ~Index{0};
constexpr int kNoBackward = -1;

enum class Phase : std::uint8_t { forward, backward };

/// The groups in the order in which they are gathered, with and without autograd's engine running.
struct Orders {
  std::vector<Index> forward;
  std::vector<Index> backward;
  std::vector<Index>& of(Phase phase) { return phase == Phase::forward ? forward : backward; }
};

bool contains(const std::vector<Index>& list, Index g) {
  return std::find(list.begin(), list.end(), g) != list.end();
}

bool any_contains(const std::vector<std::vector<Index>>& lists, Index g) {
  return std::any_of(lists.begin(), lists.end(),
                     [&](const auto& list) { return contains(list, g); });
}

/// What all ranks saw becomes the order of all: that of the rank that saw most. What it did not see
/// follows the group that was assumed to come before it; groups in `unneeded` are left out.
std::vector<Index> agreed(const std::vector<std::vector<Index>>& seen,
                          const std::vector<Index>& assumed, const std::vector<Index>& unneeded) {
  std::vector<Index> out;
  for (const std::vector<Index>& order : seen) {
    if (order.size() > out.size()) out = order;
  }
  Index before = kNone;
  for (const Index g : assumed) {
    if (!contains(out, g) && !contains(unneeded, g)) {
      const auto at = before == kNone ? out.begin() : std::find(out.begin(), out.end(), before) + 1;
      out.insert(at, g);
    }
    if (contains(out, g)) before = g;
  }
  return out;
}

/// Groups of parameters, in which order they are gathered and reduced, and when they are dropped.
///
/// Parameters own it, by what their tensors remember; it knows them only weakly.
/// THREADS: any; one lock, held while something is waited for.
class Sharding final : public UseSource, public std::enable_shared_from_this<Sharding> {
 public:
  Sharding(std::vector<ParameterGroup> groups, const FullyShardOptions& options,
           std::shared_ptr<World> world, const Mesh& mesh)
      : options_(options), world_(std::move(world)), mesh_(mesh) {
    for (ParameterGroup& group : groups) {
      groups_.push_back(std::make_unique<ShardGroup>(std::move(group), options, *world_, mesh));
    }
    for (Index g = 0; g < groups_.size(); ++g) {
      orders_.forward.push_back(g);
      orders_.backward.insert(orders_.backward.begin(), g);
      for (std::size_t i = 0; i < groups_[g]->parameters().size(); ++i) places_.emplace_back(g, i);
    }
    reduce_order_ = orders_.backward;
    unused_.assign(groups_.size(), false);
    launched_.assign(groups_.size(), false);
  }

  /// Lets the parameters know where they come from.
  void attach();
  /// By parameter; undefined where it is gone.
  std::vector<at::Tensor> parameters() const;

  // ---- UseSource -------------------------------------------------------------------------------
  at::Tensor in_use(std::size_t index) override {
    const std::scoped_lock lock(mutex_);
    const auto [g, i] = places_[index];
    if (current_ != g || has_failed()) enter(g);
    return groups_[g]->used(i);
  }
  Layout layout_in_use(std::size_t index) const override {
    const auto [g, i] = places_[index];
    return groups_[g]->parameters()[i].used->layout;
  }
  void written(std::size_t index) override {
    const std::scoped_lock lock(mutex_);
    ++writes_;
    drop(places_[index].first);
  }
  std::uint64_t writes() const override { return writes_; }

  // ---- what the handle passes on ---------------------------------------------------------------
  void finish() {
    const std::scoped_lock lock(mutex_);
    if (has_failed()) leave_failed_backward();
    end_backward();
  }
  void release() {
    const std::scoped_lock lock(mutex_);
    drop_all();
  }
  std::size_t gathered() const {
    const std::scoped_lock lock(mutex_);
    return live();
  }
  std::size_t most_gathered() const { return most_gathered_; }
  std::vector<GroupReport> groups() const;
  bool set_sync(bool on) {
    const std::scoped_lock lock(mutex_);
    return std::exchange(sync_, on);
  }

  void take_gradient(std::size_t index, const at::Tensor& gradient);

 private:
  void enter(Index g);
  void step_to(std::size_t position, bool use);
  void finish_phase();
  std::optional<std::size_t> position_of(Index g);
  void gather(Index g);
  void complete(Index g);
  void drop(Index g);
  void drop_all();
  void keep_only(Index a, Index b);
  std::size_t live() const;

  void watch_backward();
  void backward_ended(int task);
  bool has_failed() const;
  void begin_backward();
  void leave_failed_backward();
  void end_backward();
  void launch_ready();
  void launch(Index g);
  void finish_reductions(std::size_t but);
  void reduce_unexpected();
  void agree();

  const FullyShardOptions options_;
  const std::shared_ptr<World> world_;
  const Mesh mesh_;
  std::vector<std::unique_ptr<ShardGroup>> groups_;
  std::vector<std::pair<Index, std::size_t>> places_;  // by parameter

  mutable std::recursive_mutex mutex_;
  std::atomic<std::uint64_t> writes_ = 0;
  Orders orders_;
  Orders seen_;  // in the first step
  std::vector<Index> reduce_order_;
  std::vector<Index> seen_ready_;
  bool learning_ = true;
  std::uint64_t steps_ = 0;

  Index current_ = kNone;
  Phase phase_ = Phase::forward;
  bool running_ = false;  // somewhere between the first use of a phase and its end
  bool trains_ = false;   // a backward follows this forward: as its first use on this rank says
  std::size_t next_ = 0;  // the position in the order that was not yet entered
  std::size_t most_gathered_ = 0;

  bool sync_ = true;
  std::vector<int> watched_;    // graph tasks that used parameters and have not ended
  int backward_ = kNoBackward;  // the graph task whose gradients are taken
  Progress progress_;
  std::string broken_;  // why the ranks cannot go on
  std::vector<bool> launched_;
  std::vector<bool> unused_;  // by group: no rank used it in the last step
  std::vector<Index> reducing_;
};

// ---- gathering ---------------------------------------------------------------------------------

std::size_t Sharding::live() const {
  return static_cast<std::size_t>(std::count_if(
      groups_.begin(), groups_.end(), [](const auto& group) { return group->is_here(); }));
}

void Sharding::gather(Index g) {
  ++progress_.gathers;
  groups_[g]->gather();
  most_gathered_ = std::max(most_gathered_, live());
}

void Sharding::complete(Index g) {
  const double waited = groups_[g]->complete();
  GroupReport& report = groups_[g]->report();
  (learning_ ? report.exposed_at_first : report.exposed) += waited;
}

void Sharding::drop(Index g) {
  if (groups_[g]->is_here()) groups_[g]->drop();
  if (current_ == g) current_ = kNone;
}

void Sharding::drop_all() {
  for (Index g = 0; g < groups_.size(); ++g) drop(g);
}

void Sharding::keep_only(Index a, Index b) {
  for (Index g = 0; g < groups_.size(); ++g) {
    if (g != a && g != b) drop(g);
  }
}

std::optional<std::size_t> Sharding::position_of(Index g) {
  const std::vector<Index>& order = orders_.of(phase_);
  const auto at = std::find(order.begin() + static_cast<std::ptrdiff_t>(next_), order.end(), g);
  if (at == order.end()) return std::nullopt;
  return static_cast<std::size_t>(at - order.begin());
}

/// Makes the group at a position the one in use, and sees to the next. Ranks that do not use it
/// take part in its gather all the same.
void Sharding::step_to(std::size_t position, bool use) {
  const std::vector<Index>& order = orders_.of(phase_);
  const Index g = order[position];
  const bool last = position + 1 == order.size();
  Index following = last ? kNone : order[position + 1];
  if (last && phase_ == Phase::forward && trains_ && !orders_.backward.empty()) {
    following = orders_.backward[0];
  }
  const bool keeps = options_.keep_after_forward && phase_ == Phase::forward;
  if (!keeps) keep_only(g, following);
  next_ = position + 1;
  if (!groups_[g]->is_here()) gather(g);
  if (use) complete(g);
  current_ = use ? g : kNone;
  if (following != kNone && !groups_[following]->is_here() && options_.prefetch && !learning_) {
    gather(following);
  }
}

/// Gathers what other ranks may use before the phase ends.
void Sharding::finish_phase() {
  for (const std::size_t end = orders_.of(phase_).size(); next_ < end;) step_to(next_, false);
  next_ = 0;
  running_ = false;
}

void Sharding::enter(Index g) {
  const BelowAutograd below;
  if (has_failed()) leave_failed_backward();
  const Phase now =
      torch::autograd::get_current_node() != nullptr ? Phase::backward : Phase::forward;
  if (now == Phase::backward) watch_backward();
  if (now != phase_) {
    if (running_ && phase_ == Phase::forward) finish_phase();
    phase_ = now;
    next_ = 0;
  }
  if (learning_) seen_.of(now).push_back(g);
  auto at = position_of(g);
  if (!at && now == Phase::forward && running_ && contains(orders_.forward, g)) {
    finish_phase();  // a new pass
    at = position_of(g);
  }
  if (!running_ && now == Phase::forward) trains_ = at::GradMode::is_enabled();
  running_ = true;
  if (!at) {
    // Used once more than expected: every rank that comes here does so at the same point.
    const Index prefetched = next_ < orders_.of(now).size() ? orders_.of(now)[next_] : kNone;
    if (!options_.keep_after_forward) keep_only(g, prefetched);
    if (!groups_[g]->is_here()) gather(g);
    complete(g);
    current_ = g;
    return;
  }
  while (next_ < *at) step_to(next_, false);
  step_to(*at, true);
}

// ---- reducing ----------------------------------------------------------------------------------

void Sharding::take_gradient(std::size_t index, const at::Tensor& gradient) {
  const std::scoped_lock lock(mutex_);
  begin_backward();
  const auto [g, i] = places_[index];
  groups_[g]->take_gradient(i, gradient);
  if (!sync_ || !groups_[g]->is_ready()) return;
  if (learning_) seen_ready_.push_back(g);
  launch_ready();
}

/// The first use of a parameter, or the first gradient, in a backward asks to be told of its end.
void Sharding::watch_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (std::find(watched_.begin(), watched_.end(), task) != watched_.end()) return;
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this(), task] {
    translating([&] {
      const std::scoped_lock lock(self->mutex_);
      self->backward_ended(task);
    });
  });
  watched_.push_back(task);
}

void Sharding::backward_ended(int task) {
  if (backward_ != task) {
    std::erase(watched_, task);
    return;
  }
  if (torch::autograd::get_current_node() != nullptr) {
    fail<ValueError>("fully_shard",
                     "a backward inside a backward gave gradients, as checkpointing with "
                     "use_reentrant=True does; use use_reentrant=False");
  }
  end_backward();
}

/// Whether a backward began that is not running, and was never heard to end.
bool Sharding::has_failed() const {
  return !watched_.empty() && torch::autograd::get_current_graph_task_id() == kNoBackward;
}

void Sharding::begin_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (backward_ == task) return;
  if (backward_ != kNoBackward) leave_failed_backward();
  watch_backward();
  for (const auto& group : groups_) group->drop_kept_gradients();
  backward_ = task;
  launched_.assign(groups_.size(), false);
}

/// The backward before this ended with an error, with some gradients reduced and some not: all are
/// dropped, with what they were added to. Where ranks failed alike, none waits for another, and all
/// begin again.
void Sharding::leave_failed_backward() {
  if (!broken_.empty()) fail<WorldError>("fully_shard", broken_);
  if (!world_->in_lockstep() && !world_->simulated()) {
    try {
      meet_after_failure(*world_, mesh_, progress_);
    } catch (const WorldError& error) {
      broken_ = error.what();
      throw;
    }
  }
  for (const auto& group : groups_) group->forget_gradients();
  reducing_.clear();
  drop_all();
  watched_.clear();
  backward_ = kNoBackward;
  launched_.assign(groups_.size(), false);
  phase_ = Phase::forward;
  running_ = false;
  next_ = 0;
  if (learning_) {
    seen_ = {};
    seen_ready_.clear();
  }
}

/// Begins reductions in the order that all ranks follow, as far as gradients are there.
void Sharding::launch_ready() {
  for (const Index g : reduce_order_) {
    if (launched_[g] || unused_[g] || !groups_[g]->trains()) continue;
    if (!groups_[g]->is_ready()) return;
    launch(g);
  }
}

void Sharding::launch(Index g) {
  launched_[g] = true;
  finish_reductions(1);
  ++progress_.reductions;
  groups_[g]->reduce();
  reducing_.push_back(g);
}

/// Waits for all reductions but the last few, which may be under way.
void Sharding::finish_reductions(std::size_t but) {
  while (reducing_.size() > but) {
    const Index g = reducing_.front();
    reducing_.erase(reducing_.begin());
    ++progress_.finished;
    unused_[g] = !groups_[g]->finish_reduction();
  }
}

/// Groups that no rank used last time are left out, unless some rank used one now: one small
/// reduction asks.
void Sharding::reduce_unexpected() {
  std::vector<Index> asked;
  for (const Index g : reduce_order_) {
    if (!launched_[g] && unused_[g] && groups_[g]->trains()) asked.push_back(g);
  }
  if (asked.empty()) return;
  std::vector<std::string> axes = options_.replicate;
  axes.insert(axes.end(), options_.shard.begin(), options_.shard.end());
  const Comm comm = world_->along(mesh_, axes);
  std::vector<int> has_any;
  for (const Index g : asked) has_any.push_back(groups_[g]->has_any() ? 1 : 0);
  const at::Tensor used = at::tensor(has_any, at::kInt);
  const std::vector<at::Tensor> mine(comm.members().size(), used.to(world_->piece_device()));
  const auto all = all_reduce(comm, mine, Placement::partial(Reduction::sum),
                              Call{.tensor = "used groups", .op = "fully_shard"})
                       .wait();
  if (all.empty()) return;
  const at::Tensor counts = world_->simulated() ? used : all[0].to(at::kCPU);
  for (std::size_t k = 0; k < asked.size(); ++k) {
    if (counts.const_data_ptr<int>()[k] > 0) launch(asked[k]);
  }
}

void Sharding::end_backward() {
  const BelowAutograd below;
  if (phase_ == Phase::backward && running_) finish_phase();
  if (sync_) {
    for (const Index g : reduce_order_) {
      if (!launched_[g] && !unused_[g] && groups_[g]->trains()) launch(g);
    }
    reduce_unexpected();
    finish_reductions(0);
  } else {
    for (const auto& group : groups_) group->keep_gradients();
  }
  launched_.assign(groups_.size(), false);
  backward_ = kNoBackward;
  watched_.clear();
  drop_all();
  phase_ = Phase::forward;
  running_ = false;
  next_ = 0;
  if (learning_) agree();
  ++steps_;
}

/// After the first step: what was used in which order on any rank is the order from now on.
void Sharding::agree() {
  learning_ = false;
  const std::size_t limit = 4 * groups_.size() + 1;  // of each list, with its length
  std::vector<std::int64_t> encoded;
  for (const auto* list : {&seen_.forward, &seen_.backward, &seen_ready_}) {
    const std::size_t end = encoded.size() + limit;
    const std::size_t n = std::min(list->size(), limit - 1);
    encoded.push_back(static_cast<std::int64_t>(n));
    encoded.insert(encoded.end(), list->begin(), list->begin() + static_cast<std::ptrdiff_t>(n));
    encoded.resize(end);
  }
  const at::Tensor row = at::tensor(encoded, at::kLong);
  const auto length = static_cast<std::int64_t>(limit);
  std::vector<std::string> axes;
  for (std::size_t a = 0; a < mesh_.axes(); ++a) axes.emplace_back(mesh_.name(a));
  const Comm comm = world_->along(mesh_, axes);
  const std::vector<at::Tensor> mine(comm.members().size(), row.to(world_->piece_device()));
  const auto all =
      all_gather(comm, mine, 0, {}, Call{.tensor = "order of groups", .op = "fully_shard"}).wait();
  if (all.empty()) return;
  const at::Tensor rows = world_->simulated() ? row : all[0].to(at::kCPU);
  const std::int64_t* values = rows.const_data_ptr<std::int64_t>();
  std::vector<std::vector<Index>> lists[3];
  for (std::int64_t r = 0; r < rows.numel() / (3 * length); ++r) {
    for (std::int64_t k = 0; k < 3; ++k) {
      const std::int64_t* list = values + (3 * r + k) * length;
      lists[k].emplace_back(list + 1, list + 1 + list[0]);
    }
  }
  // A group that was used, but in backward by no rank, is not needed there. What no rank used at
  // all may be used later, and by one rank only: it stays in the order.
  std::vector<Index> unneeded;
  for (Index g = 0; g < groups_.size(); ++g) {
    if (any_contains(lists[0], g) && !any_contains(lists[1], g)) unneeded.push_back(g);
  }
  orders_.forward = agreed(lists[0], orders_.forward, {});
  orders_.backward = agreed(lists[1], orders_.backward, unneeded);
  reduce_order_ = agreed(lists[2], reduce_order_, {});
}

std::vector<GroupReport> Sharding::groups() const {
  const std::scoped_lock lock(mutex_);
  std::vector<GroupReport> out;
  for (const auto& group : groups_) {
    GroupReport report = group->report();
    if (steps_ > 1) report.exposed /= static_cast<double>(steps_ - 1);
    out.push_back(std::move(report));
  }
  return out;
}

// ---- the parameters' side
// ------------------------------------------------------------------------

/// Hands gradients of a leaf over; autograd then has none to accumulate.
class TakeGradient final : public torch::autograd::FunctionPreHook {
 public:
  TakeGradient(std::shared_ptr<Sharding> sharding, std::size_t index)
      : sharding_(std::move(sharding)), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (grads[0].defined()) translating([&] { sharding_->take_gradient(index_, grads[0]); });
    return {at::Tensor()};
  }

 private:
  std::shared_ptr<Sharding> sharding_;
  std::size_t index_;
};

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

/// Takes the parameters' gradients as long as it lives. It owns the nodes that would accumulate
/// them, which own the parameters: these cannot own it in turn.
class Handle final : public FullyShard {
 public:
  explicit Handle(std::shared_ptr<Sharding> sharding) : sharding_(std::move(sharding)) {
    const auto parameters = sharding_->parameters();
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      if (!parameters[k].requires_grad()) continue;
      auto node = torch::autograd::impl::grad_accumulator(parameters[k]);
      node->add_pre_hook(std::make_unique<TakeGradient>(sharding_, k));
      nodes_.push_back(std::move(node));
      take(parameters[k], true);
    }
  }
  ~Handle() override {
    for (const auto& node : nodes_) {
      std::erase_if(node->pre_hooks(), [](const auto& hook) {
        return dynamic_cast<const TakeGradient*>(hook.get()) != nullptr;
      });
    }
    for (const at::Tensor& parameter : sharding_->parameters()) {
      if (parameter.defined()) take(parameter, false);
    }
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  void finish() override { sharding_->finish(); }
  void release() override { sharding_->release(); }
  std::size_t gathered() const override { return sharding_->gathered(); }
  std::size_t most_gathered() const override { return sharding_->most_gathered(); }
  std::vector<GroupReport> groups() const override { return sharding_->groups(); }

 private:
  bool set_sync(bool on) override { return sharding_->set_sync(on); }

  /// The hook that lays out gradients by itself steps aside.
  static void take(const at::Tensor& parameter, bool on) {
    DistributedImpl& impl = impl_of(parameter);
    if (impl.extra() && impl.extra()->on_use) impl.extra()->on_use->takes_gradients = on;
  }

  std::shared_ptr<Sharding> sharding_;
  std::vector<c10::intrusive_ptr<torch::autograd::Node>> nodes_;
};

void check_axes(const Mesh& mesh, const FullyShardOptions& options) {
  if (options.shard.empty()) {
    fail<ValueError>("fully_shard", "name the axes of ", mesh,
                     " to cut parameters over, in `shard`");
  }
  std::vector<std::string> seen;
  for (const auto* axes : {&options.shard, &options.replicate}) {
    for (const std::string& axis : *axes) {
      mesh.axis_index(axis);  // refuses what is no axis
      if (std::find(seen.begin(), seen.end(), axis) != seen.end()) {
        fail<ValueError>("fully_shard", "axis ", axis, " is named twice");
      }
      seen.push_back(axis);
    }
  }
}

}  // namespace

FullyShard::NoSync::NoSync(FullyShard& sharded)
    : sharded_(sharded), before_(sharded.set_sync(false)) {}
FullyShard::NoSync::~NoSync() { sharded_.set_sync(before_); }

std::string FullyShard::report() const {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2);
  for (const GroupReport& g : groups()) {
    out << g.name << ": " << g.gathers << " gathers of " << g.gather_bytes << " bytes, "
        << g.reductions << " reductions of " << g.reduce_bytes
        << " bytes; moved ahead of use, exposed " << g.exposed_at_first * 1e3 << " -> "
        << g.exposed * 1e3 << " ms a step\n";
  }
  out << "at most " << most_gathered() << " groups gathered\n";
  return out.str();
}

Layout sharded_layout(const Layout& use, std::size_t dims, const FullyShardOptions& options,
                      std::string_view name) {
  int dim = 0;
  for (const auto& [pattern, wanted] : options.dims) {
    if (!matches(name, pattern)) continue;
    dim = wanted < 0 ? wanted + static_cast<int>(dims) : wanted;
    break;
  }
  if (dims == 0) return use;
  if (dim < 0 || static_cast<std::size_t>(dim) >= dims) {
    fail<ValueError>("fully_shard", "'", name, "' has ", dims, " dimensions, none of which is ",
                     dim);
  }
  const auto check_whole = [&](std::string_view kind, const std::string& axis) {
    if (use.placement(axis).is_replicate()) return;
    fail<ValueError>("fully_shard", "'", name, "' is used in layout ", use, ", which is ",
                     use.placement(axis), " on the ", kind, " axis ", axis, "; it must be R there");
  };
  for (const std::string& axis : options.replicate) check_whole("replicate", axis);
  Layout out = use;
  for (const std::string& axis : options.shard) {
    check_whole("shard", axis);
    out = out.with(axis, Placement::shard(dim));
  }
  return out;
}

void check_fully_shard(const std::vector<ParameterGroup>& groups,
                       const FullyShardOptions& options) {
  std::optional<Mesh> mesh;
  for (const ParameterGroup& group : groups) {
    for (const ShardedParameter& p : group.parameters) {
      if (!mesh) {
        mesh =
            has_layout(p.tensor) || !p.use ? distributed(p).spec()->layout.mesh() : p.use->mesh();
        check_axes(*mesh, options);
      }
      if (!p.use) distributed(p);
      check_shardable(p, options, *mesh);
    }
  }
  if (!mesh) fail<ValueError>("fully_shard", "there are no parameters");
}

std::shared_ptr<FullyShard> fully_shard(std::vector<ParameterGroup> groups,
                                        const FullyShardOptions& options) {
  std::set<const void*> seen;  // tied ones are gathered with the first
  for (ParameterGroup& group : groups) {
    std::erase_if(group.parameters, [&](const ShardedParameter& p) {
      return !seen.insert(p.tensor.unsafeGetTensorImpl()).second;
    });
    for (const ShardedParameter& p : group.parameters) distributed(p);
  }
  std::erase_if(groups, [](const ParameterGroup& g) { return g.parameters.empty(); });
  check_fully_shard(groups, options);
  const DistributedImpl& impl = distributed(groups[0].parameters[0]);
  const Mesh mesh = impl.spec()->layout.mesh();
  auto sharding = std::make_shared<Sharding>(std::move(groups), options, impl.shared_world(), mesh);
  sharding->attach();
  return std::make_shared<Handle>(std::move(sharding));
}

}  // namespace intarsia
