#include "intarsia/training_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>
#include <variant>

#include "base/text.h"
#include "checkpoint/format/json.h"
#include "intarsia/build.h"
#include "intarsia/error.h"
#include "intarsia/pattern.h"
#include "parallel/optim/optimizer_states.h"
#include "training/optimizer_options.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

using checkpoint::Json;
using torch::nn::Module;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

constexpr std::string_view kWhere = "TrainingState";
constexpr const char* kTensor = "__tensor__";
constexpr const char* kStep = "step";

using Thing = std::variant<Module*, Optimizer*, at::Generator, at::Tensor>;

/// A state that is being read for a parameter.
struct NewState {
  at::Tensor parameter;
  std::unique_ptr<OptimizerParamState> made;
  at::Tensor step;  // undefined where none is counted
};

/// What an optimizer takes when its tensors were read.
struct NewOptimizer {
  Optimizer* optimizer = nullptr;
  std::vector<NewState> states;
  Json groups;
};

/// A count of steps as Python keeps it: f32, as long as that counts by ones.
at::Tensor step_tensor(std::int64_t step) {
  const bool fits = step <= (std::int64_t{1} << 24);
  return at::full({}, static_cast<double>(step),
                  at::TensorOptions(fits ? at::kFloat : at::kDouble));
}

/// The parameters of each group, by the names that modules give them.
class Names {
 public:
  void add(const std::string& key, const Module& module) {
    std::set<const void*> seen;
    for (const auto& item : module.named_parameters()) {
      const void* parameter = item.value().unsafeGetTensorImpl();
      if (seen.insert(parameter).second) names_[parameter] = concat(key, '.', item.key());
    }
  }

  std::vector<std::vector<std::pair<std::string, at::Tensor>>> of(
      const Optimizer& optimizer) const {
    std::vector<std::vector<std::pair<std::string, at::Tensor>>> out;
    std::int64_t number = 0;
    for (const auto& group : optimizer.param_groups()) {
      out.emplace_back();
      for (const at::Tensor& parameter : group.params()) {
        const auto found = names_.find(parameter.unsafeGetTensorImpl());
        out.back().emplace_back(found == names_.end() ? std::to_string(number) : found->second,
                                parameter);
        ++number;
      }
    }
    return out;
  }

 private:
  std::map<const void*, std::string> names_;
};

/// What an optimizer has: its tensors go to `tensors`, the rest is the result.
Json save_optimizer(const std::string& key, Optimizer& optimizer, const Names& names,
                    NamedTensors& tensors) {
  Json groups = Json::array();
  Json states = Json::object();
  const auto parameters = names.of(optimizer);
  for (std::size_t g = 0; g < parameters.size(); ++g) {
    Json params = Json::array();
    for (const auto& [name, parameter] : parameters[g]) {
      params.push_back(name);
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      Json& saved = states[name] = Json::object();
      const auto add = [&, &name = name](const std::string& part, const at::Tensor& tensor) {
        tensors.emplace_back(concat(key, ".state.", name, '.', part), tensor);
        saved[part] = {{kTensor, tensors.back().first}};
      };
      const StateParts parts = parts_of(kWhere, *state->second);
      if (parts.step != nullptr) add(kStep, step_tensor(*parts.step));
      for (const auto& [part, tensor] : parts.tensors) {
        if (tensor->defined()) add(part, *tensor);
      }
    }
    groups.push_back({{"params", std::move(params)},
                      {"options", options_json(kWhere, optimizer.param_groups()[g].options())}});
  }
  return {{"param_groups", std::move(groups)}, {"state", std::move(states)}};
}

/// Finds out what of a step an optimizer takes.
class LoadOptimizer {
 public:
  LoadOptimizer(const std::string& key, Optimizer& optimizer, const Names& names,
                const CheckpointContents& contents, NamedTensors& tensors)
      : key_(key), optimizer_(optimizer), contents_(contents), tensors_(tensors) {
    parameters_ = names.of(optimizer);
  }

  NewOptimizer plan() {
    const Json saved = checkpoint::parse_json(key_, contents_.values.at(key_));
    if (!saved.is_object() || !saved.contains("param_groups") || !saved.contains("state")) {
      refuse("is no optimizer there");
    }
    NewOptimizer out{&optimizer_, {}, saved["param_groups"]};
    check_groups(out.groups);
    std::map<std::string, at::Tensor> by_name;
    for (const auto& group : parameters_) by_name.insert(group.begin(), group.end());
    for (const auto& [name, parts] : saved["state"].items()) {
      const auto found = by_name.find(name);
      if (found == by_name.end())
        refuse(concat("has a state of '", name, "' there, which it does not train"));
      out.states.push_back(state_of(name, found->second, parts));
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    fail<ValueError>(kWhere, "'", key_, "' ", reason, "; nothing was changed");
  }

  void check_groups(const Json& groups) const {
    if (!groups.is_array() || groups.size() != parameters_.size()) {
      refuse(concat("has ", groups.size(), " groups there and ", parameters_.size(), " here"));
    }
    for (std::size_t g = 0; g < parameters_.size(); ++g) {
      const Json theirs = groups[g].value("params", Json::array());
      const auto& ours = parameters_[g];
      if (theirs.size() != ours.size()) {
        refuse(concat("trains ", theirs.size(), " parameters there and ", ours.size(),
                      " here, in group ", g));
      }
      for (std::size_t i = 0; i < ours.size(); ++i) {
        if (theirs[i] == ours[i].first) continue;
        refuse(concat("trains ", theirs[i].dump(), " there where it trains '", ours[i].first,
                      "' here, in group ", g));
      }
      set_options(kWhere, optimizer_.param_groups()[g].options(),
                  groups[g].value("options", Json::object()),
                  concat("group ", g, " of '", key_, "'"),
                  /*only_check=*/true);
    }
  }

  NewState state_of(const std::string& name, const at::Tensor& parameter, const Json& saved) {
    NewState out{parameter, empty_state(kWhere, optimizer_), {}};
    const StateParts parts = parts_of(kWhere, *out.made);
    for (const auto& [part, value] : saved.items()) {
      if (value.is_null()) continue;
      const std::string what = concat(part, " of '", name, "'");
      if (!value.is_object() || !value.contains(kTensor) || !value[kTensor].is_string()) {
        refuse(concat("has ", what, " as ", value.dump(), " there, which is no tensor"));
      }
      const std::string tensor = value[kTensor].get<std::string>();
      if (part == kStep && parts.step != nullptr) {
        tensors_.emplace_back(tensor, out.step = at::zeros({}, at::TensorOptions(dtype(tensor))));
        continue;
      }
      const auto is_it = [&, &part = part](const auto& each) { return each.first == part; };
      const auto mine = std::find_if(parts.tensors.begin(), parts.tensors.end(), is_it);
      if (mine == parts.tensors.end()) {
        refuse(concat("has ", what, " there, which this kind of optimizer does not keep"));
      }
      *mine->second = at::zeros_like(parameter.detach(), at::TensorOptions(dtype(tensor)));
      tensors_.emplace_back(tensor, *mine->second);
    }
    return out;
  }

  at::ScalarType dtype(const std::string& tensor) const {
    const auto found = contents_.tensors.find(tensor);
    if (found == contents_.tensors.end())
      refuse(concat("names '", tensor, "', which is not there"));
    return scalar_type(found->second.dtype);
  }

  const std::string& key_;
  Optimizer& optimizer_;
  const CheckpointContents& contents_;
  NamedTensors& tensors_;
  std::vector<std::vector<std::pair<std::string, at::Tensor>>> parameters_;
};

void give(NewOptimizer& each) {
  each.optimizer->state().clear();
  for (NewState& state : each.states) {
    const StateParts parts = parts_of(kWhere, *state.made);
    bool any = state.step.defined();
    for (const auto& [part, tensor] : parts.tensors) any = any || tensor->defined();
    if (!any) continue;
    if (state.step.defined()) *parts.step = state.step.item().to<std::int64_t>();
    each.optimizer->state()[state.parameter.unsafeGetTensorImpl()] = std::move(state.made);
  }
  for (std::size_t g = 0; g < each.groups.size(); ++g) {
    set_options(kWhere, each.optimizer->param_groups()[g].options(),
                each.groups[g].value("options", Json::object()), {}, /*only_check=*/false);
  }
}

}  // namespace

struct TrainingState::Impl {
  std::vector<std::pair<std::string, Thing>> things;
  CheckpointValues values;
  std::vector<std::string> left_out;
  // Between tensors_for and take.
  std::vector<NewOptimizer> optimizers;
  std::vector<std::pair<at::Generator, at::Tensor>> generators;
  CheckpointValues loaded_values;

  bool has(const std::string& name) const {
    const auto is_it = [&](const auto& thing) { return thing.first == name; };
    return std::any_of(things.begin(), things.end(), is_it);
  }

  void add(const std::string& name, Thing thing) {
    if (has(name) || values.contains(name))
      fail<ValueError>(kWhere, "'", name, "' is there already");
    things.emplace_back(name, std::move(thing));
  }

  Names names() const {
    Names out;
    for (const auto& [key, thing] : things) {
      if (const auto* module = std::get_if<Module*>(&thing)) out.add(key, **module);
    }
    return out;
  }

  static void add_tensors(NamedTensors& out, const std::string& key, const Module& module) {
    for (const auto& [name, tensor] : tensors_of(module)) {
      if (tensor.defined()) out.emplace_back(concat(key, '.', name), tensor);
    }
  }

  /// What is saved: tensors, and the values that belong to things.
  CheckpointValues collect(NamedTensors& tensors) const {
    CheckpointValues out = values;
    const Names by_name = names();
    for (const auto& [key, thing] : things) {
      if (const auto* module = std::get_if<Module*>(&thing)) {
        NamedTensors all;
        add_tensors(all, key, **module);
        std::erase_if(all, [&](const auto& each) { return matches_any(each.first, left_out); });
        tensors.insert(tensors.end(), all.begin(), all.end());
        out[key] = "{}";
      } else if (const auto* optimizer = std::get_if<Optimizer*>(&thing)) {
        out[key] = save_optimizer(key, **optimizer, by_name, tensors).dump();
      } else if (const auto* generator = std::get_if<at::Generator>(&thing)) {
        tensors.emplace_back(key, generator->get_state());
        out[key] = Json{{kTensor, key}}.dump();
      } else {
        tensors.emplace_back(key, std::get<at::Tensor>(thing));
      }
    }
    return out;
  }

  void check_all_there(const CheckpointContents& contents) const {
    std::vector<std::string> missing;
    for (const auto& [key, thing] : things) {
      const auto is_below = [&, &key = key](const auto& tensor) {
        return tensor.first.starts_with(key + ".");
      };
      const bool is_module = std::holds_alternative<Module*>(thing);
      const bool is_there = std::holds_alternative<Optimizer*>(thing)
                                ? contents.values.contains(key)
                                : contents.tensors.contains(key) || contents.values.contains(key) ||
                                      (is_module && std::any_of(contents.tensors.begin(),
                                                                contents.tensors.end(), is_below));
      if (!is_there) missing.push_back(concat("'", key, "'"));
    }
    if (missing.empty()) return;
    fail<ValueError>(kWhere, "step ", contents.step, " has nothing under ", join(missing, ", "),
                     "; nothing was changed");
  }

  /// The tensors to be read of a step that holds `contents`, of which `without` are left out.
  NamedTensors tensors_for(const CheckpointContents& contents,
                           const std::vector<std::string>& without) {
    const at::NoGradGuard no_grad;
    check_all_there(contents);
    optimizers.clear();
    generators.clear();
    loaded_values = contents.values;
    NamedTensors out;
    NamedTensors needed;  // by something that has no use for a part
    const Names by_name = names();
    for (const auto& [key, thing] : things) {
      loaded_values.erase(key);
      if (const auto* module = std::get_if<Module*>(&thing)) {
        add_tensors(out, key, **module);
      } else if (const auto* optimizer = std::get_if<Optimizer*>(&thing)) {
        LoadOptimizer loading(key, **optimizer, by_name, contents, needed);
        optimizers.push_back(loading.plan());
      } else if (const auto* generator = std::get_if<at::Generator>(&thing)) {
        generators.emplace_back(*generator, at::empty_like(generator->get_state()));
        needed.emplace_back(key, generators.back().second);
      } else {
        out.emplace_back(key, std::get<at::Tensor>(thing));
      }
    }
    for (const auto& [name, tensor] : needed) {
      if (!matches_any(name, without)) continue;
      fail<ValueError>(kWhere, "'", name, "' cannot be left out: it is of no module");
    }
    out.insert(out.end(), needed.begin(), needed.end());
    return out;
  }

  /// Optimizers, generators and values take what was read into those tensors.
  void take() {
    for (NewOptimizer& each : optimizers) give(each);
    for (auto& [generator, state] : generators) generator.set_state(state);
    for (auto& [name, value] : loaded_values) values[name] = std::move(value);
    optimizers.clear();
    generators.clear();
    loaded_values.clear();
  }

  void check_only(const std::vector<std::string>& only) const {
    for (const auto& [key, thing] : things) {
      const bool is_part =
          std::holds_alternative<Optimizer*>(thing) || std::holds_alternative<at::Generator>(thing);
      if (only.empty() || !is_part) continue;
      fail<ValueError>(kWhere, "`only` is for modules and tensors; leave out '", key, "'");
    }
  }
};

TrainingState::TrainingState() : impl_(std::make_unique<Impl>()) {}
TrainingState::~TrainingState() = default;
TrainingState::TrainingState(TrainingState&&) noexcept = default;
TrainingState& TrainingState::operator=(TrainingState&&) noexcept = default;

TrainingState& TrainingState::add(const std::string& name, Module& module) {
  impl_->add(name, &module);
  return *this;
}

TrainingState& TrainingState::add(const std::string& name, Optimizer& optimizer) {
  impl_->add(name, &optimizer);
  return *this;
}

TrainingState& TrainingState::add(const std::string& name, at::Generator generator) {
  impl_->add(name, std::move(generator));
  return *this;
}

TrainingState& TrainingState::add(const std::string& name, at::Tensor tensor) {
  impl_->add(name, std::move(tensor));
  return *this;
}

TrainingState& TrainingState::set(const std::string& name, std::string json) {
  if (impl_->has(name)) fail<ValueError>(kWhere, "'", name, "' is no value; it was added");
  impl_->values[name] = std::move(json);
  return *this;
}

const std::string& TrainingState::value(const std::string& name) const {
  const auto found = impl_->values.find(name);
  if (found == impl_->values.end()) fail<ValueError>(kWhere, "there is no value '", name, "'");
  return found->second;
}

TrainingState& TrainingState::leave_out(const std::string& pattern) {
  impl_->left_out.push_back(pattern);
  return *this;
}

NamedTensors TrainingState::tensors() const {
  NamedTensors out;
  impl_->collect(out);
  return out;
}

CheckpointValues TrainingState::values() const {
  NamedTensors tensors;
  return impl_->collect(tensors);
}

void save_checkpoint(World& world, const std::string& folder, std::int64_t step,
                     const TrainingState& state, const SaveCheckpointOptions& options) {
  NamedTensors tensors;
  const CheckpointValues values = state.impl_->collect(tensors);
  save_checkpoint(world, folder, step, tensors, values, options);
}

CheckpointContents load_checkpoint(World& world, const std::string& folder, TrainingState& state,
                                   const LoadCheckpointOptions& options) {
  TrainingState::Impl& impl = *state.impl_;
  impl.check_only(options.only);
  LoadCheckpointOptions all = options;
  all.without.insert(all.without.end(), impl.left_out.begin(), impl.left_out.end());
  const TensorsFor into = [&](const CheckpointContents& contents) {
    return impl.tensors_for(contents, all.without);
  };
  CheckpointContents out = load_checkpoint(world, folder, into, all);
  impl.take();
  return out;
}

CheckpointContents load_checkpoint(World& world, const std::string& folder, TrainingState& state) {
  return load_checkpoint(world, folder, state, LoadCheckpointOptions{});
}

std::optional<std::int64_t> resume_checkpoint(World& world, const std::string& folder,
                                              TrainingState& state, LoadCheckpointOptions options) {
  if (!any_checkpoint(world, folder)) return std::nullopt;
  options.fall_back = true;
  return load_checkpoint(world, folder, state, options).step;
}

}  // namespace intarsia
