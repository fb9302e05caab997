#include "intarsia/fully_shard.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/pattern.h"
#include "intarsia/tensor.h"
#include "parallel/sharded/sharding.h"
#include "parallel/sharded/stored_parameter.h"
#include "tensor/core/translating.h"

namespace intarsia {
namespace {

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
  void hold() override { sharding_->hold(); }
  void let_go() override { sharding_->let_go(); }
  void forget() override { sharding_->forget(); }
  void reduce() override { sharding_->reduce(); }
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
                     " to shard parameters over, in `shard`");
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
  const auto check_replicated = [&](std::string_view kind, const std::string& axis) {
    if (use.placement(axis).is_replicate()) return;
    fail<ValueError>("fully_shard", "'", name, "' is used in layout ", use, ", which is ",
                     use.placement(axis), " on the ", kind, " axis ", axis, "; it must be R there");
  };
  for (const std::string& axis : options.replicate) check_replicated("replicate", axis);
  Layout out = use;
  for (const std::string& axis : options.shard) {
    check_replicated("shard", axis);
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
  if (!mesh)
    fail<ValueError>("fully_shard",
                     "there are no parameters; give those of a module, or a module that has some");
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
