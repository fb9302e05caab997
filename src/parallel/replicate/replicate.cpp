#include "intarsia/replicate.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "parallel/replicate/buckets.h"
#include "parallel/replicate/replica_core.h"
#include "tensor/core/spec.h"

namespace intarsia {
namespace {

/// A number that has no dtype of its own, as Python's have none.
at::Tensor number(double value) {
  at::Tensor t = at::scalar_tensor(value, at::kDouble);
  t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

}  // namespace

/// Tells the core that a gradient is there.
class Replica::Core::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::weak_ptr<Core> core, std::size_t slot) : core_(std::move(core)), slot_(slot) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& gradients) override {
    if (const auto core = core_.lock()) {
      core->translated([&] { core->came(slot_, !gradients.empty() && gradients[0].defined()); });
    }
    return outputs;
  }

 private:
  std::weak_ptr<Core> core_;
  std::size_t slot_;
};

Replica::Core::Core(World& world, Comm comm, std::string axis, const ReplicateOptions& options)
    : options_(options),
      world_(world.shared_from_this()),
      comm_(std::move(comm)),
      axis_(std::move(axis)),
      scale_(1.0 / static_cast<double>(comm_.size())),
      scale_tensor_(number(scale_)) {}

Replica::Core::~Core() {
  for (const Slot& s : slots_) s.accumulator->del_post_hook(s.hook);
}

// ---- the start ---------------------------------------------------------------------------------

void Replica::Core::check_free(const NamedTensor& parameter) {
  if (!parameter.tensor.requires_grad()) return;
  const auto node = torch::autograd::impl::grad_accumulator(parameter.tensor);
  for (const auto& hook : node->post_hooks()) {
    if (dynamic_cast<const Hook*>(hook.get()) == nullptr) continue;
    fail<ValueError>(kReplicate, "parameter '", parameter.name,
                     "' is replicated already, and would be averaged twice; destroy the other "
                     "Replica first");
  }
}

void Replica::Core::start(const ReplicatedTensors& tensors) {
  for (const NamedTensor& p : tensors.parameters) check_free(p);
  check_same_model(comm_, tensors, world_->device());
  std::vector<at::Tensor> all;
  for (const auto* list : {&tensors.parameters, &tensors.buffers}) {
    for (const NamedTensor& t : *list) all.push_back(t.tensor);
  }
  const std::vector<FlatGroup> groups = by_dtype_and_device(all);
  counters_.bytes += take_from_first(comm_, groups);
  counters_.collectives += groups.size();

  for (const NamedTensor& p : tensors.parameters) {
    if (p.tensor.requires_grad()) {
      add_slot(p);
    } else {
      frozen_.push_back(p);
    }
  }
  if (options_.buffers != BufferSync::own) {
    std::vector<at::Tensor> kept;
    for (const NamedTensor& b : tensors.buffers) kept.push_back(b.tensor);
    buffers_ = by_dtype_and_device(kept);
  }
  // Backward comes to the last parameters first, mostly.
  std::vector<std::size_t> backwards(slots_.size());
  std::iota(backwards.rbegin(), backwards.rend(), std::size_t{0});
  set_buckets(buckets_by(backwards));
}

void Replica::Core::add_slot(const NamedTensor& parameter) {
  const auto node = torch::autograd::impl::grad_accumulator(parameter.tensor);
  const std::uintptr_t key =
      node->add_post_hook(std::make_unique<Hook>(weak_from_this(), slots_.size()));
  slots_.push_back(
      {.name = parameter.name, .parameter = parameter.tensor, .accumulator = node, .hook = key});
}

std::vector<std::vector<std::size_t>> Replica::Core::buckets_by(
    const std::vector<std::size_t>& order) const {
  std::vector<Parcel> parcels;
  for (const Slot& s : slots_) {
    const auto dtype = options_.reduce_dtype.value_or(s.parameter.scalar_type());
    parcels.push_back({s.parameter.scalar_type(), s.parameter.device(),
                       s.parameter.numel() * static_cast<std::int64_t>(c10::elementSize(dtype))});
  }
  return make_buckets(parcels, order, {options_.first_bucket_bytes, options_.bucket_bytes});
}

void Replica::Core::set_buckets(std::vector<std::vector<std::size_t>> members) {
  buckets_.clear();
  for (std::vector<std::size_t>& list : members) {
    Bucket bucket;
    const at::Tensor& any = slots_[list[0]].parameter;
    const at::ScalarType dtype = options_.reduce_dtype.value_or(any.scalar_type());
    bucket.options = any.options().dtype(dtype).requires_grad(false);
    bucket.casts = dtype != any.scalar_type();
    for (const std::size_t i : list) {
      slots_[i].bucket = buckets_.size();
      slots_[i].offset = bucket.elements;
      slots_[i].view.reset();
      bucket.elements += slots_[i].parameter.numel();
    }
    bucket.text = concat("bucket ", buckets_.size(), ", ", dtype_text(dtype), '[', bucket.elements,
                         "], ", slots_[list.front()].name);
    if (list.size() > 1) bucket.text += concat(" to ", slots_[list.back()].name);
    bucket.missing = list.size();
    bucket.members = std::move(list);
    buckets_.push_back(std::move(bucket));
  }
  counters_.buckets = buckets_.size();
}

ReplicaCounters Replica::Core::counters() const {
  const std::scoped_lock lock(mutex_);
  return counters_;
}

std::vector<std::vector<std::string>> Replica::Core::names() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets_) {
    names.emplace_back();
    for (const std::size_t i : bucket.members) names.back().push_back(slots_[i].name);
  }
  return names;
}

// ---- the public side ---------------------------------------------------------------------------

Replica::Replica(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Replica::~Replica() = default;

Replica::LocalScope::LocalScope(Replica& replica) {
  if (!replica.core_) return;
  depth_ = replica.core_->local_depth();
  ++*depth_;
}
Replica::LocalScope::~LocalScope() {
  if (depth_) --*depth_;
}

void Replica::finish() {
  if (!core_) return;
  core_->translated([&] { core_->finish(); });
}

ReplicaCounters Replica::counters() const { return core_ ? core_->counters() : ReplicaCounters(); }

std::vector<std::vector<std::string>> Replica::buckets() const {
  return core_ ? core_->names() : std::vector<std::vector<std::string>>();
}

namespace {

/// Without tensors that come again under another name, such as tied weights.
std::vector<NamedTensor> once_each(const std::vector<NamedTensor>& tensors) {
  std::set<const void*> seen;
  std::vector<NamedTensor> once;
  for (const NamedTensor& t : tensors) {
    if (!t.tensor.defined() || !seen.insert(t.tensor.unsafeGetTensorImpl()).second) continue;
    if (has_layout(t.tensor)) {
      fail<ValueError>(kReplicate, "'", t.name, "' is a distributed tensor, ", describe(t.tensor),
                       "; replicate takes plain ones. Where the batch is sharded over an axis on "
                       "which parameters are replicated, their gradients are reduced without it");
    }
    if (t.tensor.requires_grad() && !t.tensor.is_leaf()) {
      fail<ValueError>(kReplicate, "'", t.name,
                       "' is the result of an op, and no leaf with a gradient");
    }
    once.push_back(t);
  }
  return once;
}

void check_options(const ReplicateOptions& options) {
  if (options.bucket_bytes < 1 || options.first_bucket_bytes < 1) {
    fail<ValueError>(kReplicate, "buckets hold at least 1 byte, not ", options.bucket_bytes,
                     " and ", options.first_bucket_bytes);
  }
  if (options.reduce_dtype && !c10::isFloatingType(*options.reduce_dtype)) {
    fail<ValueError>(kReplicate, "gradients cannot be reduced in ",
                     dtype_text(*options.reduce_dtype), "; take a floating dtype");
  }
}

ReplicatedTensors replicated_tensors(const torch::nn::Module& module) {
  ReplicatedTensors tensors;
  for (const auto& p : module.named_parameters())
    tensors.parameters.push_back({p.key(), p.value()});
  for (const auto& b : module.named_buffers()) tensors.buffers.push_back({b.key(), b.value()});
  return tensors;
}

}  // namespace

std::shared_ptr<Replica> replicate(const ReplicatedTensors& tensors, World& world, const Mesh& mesh,
                                   std::span<const std::string> axes,
                                   const ReplicateOptions& options) {
  check_options(options);
  if (world.in_lockstep()) {
    fail<UnsupportedError>(kReplicate,
                           "all ranks of this world live in one process in lockstep, where a plain "
                           "module is one and not many; lay out the batch as S(0), or use "
                           "run_in_process");
  }
  const ReplicatedTensors once{once_each(tensors.parameters), once_each(tensors.buffers)};
  const Comm comm = world.along(mesh, axes);
  std::shared_ptr<Replica::Core> core;
  if (comm.size() > 1 && !comm.members().empty()) {
    core = std::make_shared<Replica::Core>(world, comm, join(axes, "+"), options);
    core->start(once);
  }
  return std::shared_ptr<Replica>(new Replica(std::move(core)));
}

std::shared_ptr<Replica> replicate(torch::nn::Module& module, World& world, const Mesh& mesh,
                                   std::span<const std::string> axes,
                                   const ReplicateOptions& options) {
  return replicate(replicated_tensors(module), world, mesh, axes, options);
}

std::shared_ptr<Replica> replicate(torch::nn::Module& module, World& world, const Mesh& mesh,
                                   const std::string& axis, const ReplicateOptions& options) {
  return replicate(module, world, mesh, std::span(&axis, 1), options);
}

}  // namespace intarsia
