#include "intarsia/state_dict.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"
#include "intarsia/build.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "parallel/optim/optimizer_states.h"

namespace intarsia {
namespace {

constexpr std::string_view kLoad = "load_full_state_dict";
constexpr std::string_view kLoadOptimizer = "load_full_optimizer_state_dict";

bool hosts_rank_0(const at::Tensor& tensor) {
  const auto hosted = world_of(tensor).hosted();
  return std::find(hosted.begin(), hosted.end(), 0) != hosted.end();
}

struct NamedParameter {
  std::string name;
  at::Tensor parameter;
};

/// The parameters of an optimizer under the names that they have in a module. ValueError, which
/// begins with `where`, for one that is none of the module's.
std::vector<NamedParameter> parameters_of(std::string_view where,
                                          const torch::optim::Optimizer& optimizer,
                                          const torch::nn::Module& module) {
  std::map<const void*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    names.try_emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::vector<NamedParameter> out;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto name = names.find(parameters[i].unsafeGetTensorImpl());
      if (name == names.end()) {
        fail<ValueError>(where, "parameter ", i, " of group ", g, ", ", describe(parameters[i]),
                         ", is none of the module's; pass the module that the optimizer trains");
      }
      out.push_back({name->second, parameters[i]});
    }
  }
  return out;
}

std::string state_key(const std::string& name, const std::string& part) {
  return concat("state.", name, '.', part);
}
std::string rate_key(std::size_t group) { return concat("param_groups.", group, ".lr"); }

/// Full tensors, each made once.
class Filling {
 public:
  explicit Filling(const FullStateOptions& options) : options_(options) {}

  void add(std::string name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (has_layout(tensor) && options_.only_on_rank_0) keeps_ &= hosts_rank_0(tensor);
    const auto [known, fresh] = made_.try_emplace(tensor.unsafeGetTensorImpl());
    if (fresh) known->second = full_of_its_own(tensor.detach());
    out_.emplace_back(std::move(name), known->second);
  }
  void add(std::string name, const at::Scalar& number, at::ScalarType dtype) {
    out_.emplace_back(std::move(name), at::scalar_tensor(number, dtype));
  }
  NamedTensors take() { return keeps_ ? std::move(out_) : NamedTensors(); }

 private:
  at::Tensor full_of_its_own(const at::Tensor& tensor) const {
    const at::NoGradGuard no_grad;
    const at::Tensor value = has_layout(tensor) ? full(tensor) : tensor;
    if (!keeps_) return {};
    if (options_.on_cpu && !value.is_cpu()) return value.to(at::kCPU);
    return value.clone(at::MemoryFormat::Contiguous);
  }

  FullStateOptions options_;
  bool keeps_ = true;
  std::map<const void*, at::Tensor> made_;
  NamedTensors out_;
};

/// What keeps a dict from being loaded, each kind with all its names.
class Faults {
 public:
  void missing(const std::string& name) { missing_.push_back(name); }
  void unexpected(const std::string& name) { unexpected_.push_back(name); }
  void check_value(const std::string& name, const at::Tensor& value, const at::Tensor& like) {
    if (!value.defined() || has_layout(value)) {
      others_.push_back(concat("'", name, "' is ", describe(value), ", where a plain one is due"));
    } else if (value.sizes() != like.sizes()) {
      others_.push_back(concat("'", name, "' has sizes (", join(value.sizes()), "), where (",
                               join(like.sizes()), ") are due"));
    }
  }
  /// ValueError with all of them.
  void refuse(std::string_view where) const {
    std::vector<std::string> parts;
    if (!missing_.empty()) parts.push_back("it lacks " + join(missing_, ", "));
    if (!unexpected_.empty()) parts.push_back("nothing is called " + join(unexpected_, ", "));
    if (!others_.empty()) parts.push_back(join(others_, ", "));
    if (parts.empty()) return;
    fail<ValueError>(where, "the dict does not fit: ", join(parts, "; "), "; nothing was changed");
  }

 private:
  std::vector<std::string> missing_, unexpected_, others_;
};

std::map<std::string, at::Tensor> by_name(const NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

/// A full tensor laid out as another is.
at::Tensor laid_out_as(const at::Tensor& like, const at::Tensor& full_tensor) {
  const at::Tensor here = full_tensor.to(like.device());
  if (!has_layout(like)) return here.clone();
  return distribute(here, layout_of(like), world_of(like));
}

}  // namespace

NamedTensors full_state_dict(const torch::nn::Module& module, const FullStateOptions& options) {
  Filling filling(options);
  for (const auto& [name, tensor] : tensors_of(module)) filling.add(name, tensor);
  return filling.take();
}

void load_full_state_dict(torch::nn::Module& module, const NamedTensors& state, bool strict) {
  const std::map<std::string, at::Tensor> given = by_name(state);
  const NamedTensors ours = tensors_of(module);
  const std::map<std::string, at::Tensor> known = by_name(ours);
  Faults faults;
  for (const auto& [name, tensor] : ours) {
    const auto value = given.find(name);
    if (value != given.end()) {
      faults.check_value(name, value->second, tensor);
    } else if (strict && tensor.defined()) {
      faults.missing(name);
    }
  }
  for (const auto& [name, value] : state) {
    if (strict && !known.contains(name)) faults.unexpected(name);
  }
  faults.refuse(kLoad);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : ours) {
    const auto value = given.find(name);
    if (value == given.end()) continue;
    const at::Tensor cast = value->second.to(tensor.scalar_type());
    at::Tensor(tensor).copy_(has_layout(tensor) ? laid_out_as(tensor, cast) : cast);
  }
}

NamedTensors full_optimizer_state_dict(const torch::optim::Optimizer& optimizer,
                                       const torch::nn::Module& module,
                                       const FullStateOptions& options) {
  constexpr std::string_view where = "full_optimizer_state_dict";
  Filling filling(options);
  for (const auto& [name, parameter] : parameters_of(where, optimizer, module)) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    const StateParts parts = parts_of(where, *state->second);
    for (const auto& [part, tensor] : parts.tensors) filling.add(state_key(name, part), *tensor);
    if (parts.step != nullptr) filling.add(state_key(name, "step"), *parts.step, at::kLong);
  }
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    filling.add(rate_key(g), optimizer.param_groups()[g].options().get_lr(), at::kDouble);
  }
  return filling.take();
}

void load_full_optimizer_state_dict(torch::optim::Optimizer& optimizer,
                                    const torch::nn::Module& module, const NamedTensors& state) {
  const std::map<std::string, at::Tensor> given = by_name(state);
  const at::Tensor number = at::zeros({});
  std::set<std::string> used;
  Faults faults;
  struct Fresh {
    const void* parameter;
    std::unique_ptr<torch::optim::OptimizerParamState> state;
  };
  std::vector<Fresh> fresh;
  const std::vector<NamedParameter> parameters = parameters_of(kLoadOptimizer, optimizer, module);
  for (const auto& [name, parameter] : parameters) {
    auto made = empty_state(kLoadOptimizer, optimizer);
    const StateParts parts = parts_of(kLoadOptimizer, *made);
    bool any = false;
    for (const auto& [part, tensor] : parts.tensors) {
      const auto value = given.find(state_key(name, part));
      if (value == given.end()) continue;
      any = true;
      used.insert(value->first);
      faults.check_value(value->first, value->second, parameter);
    }
    if (parts.step != nullptr) {
      const auto value = given.find(state_key(name, "step"));
      if (value != given.end()) {
        used.insert(value->first);
        faults.check_value(value->first, value->second, number);
      }
      if (any != (value != given.end())) {
        faults.missing(any ? state_key(name, "step") : state_key(name, parts.tensors[0].first));
      }
    }
    if (any) fresh.push_back({parameter.unsafeGetTensorImpl(), std::move(made)});
  }
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto value = given.find(rate_key(g));
    if (value == given.end()) {
      faults.missing(rate_key(g));
      continue;
    }
    used.insert(value->first);
    faults.check_value(value->first, value->second, number);
  }
  for (const auto& [name, value] : state) {
    if (!used.contains(name)) faults.unexpected(name);
  }
  faults.refuse(kLoadOptimizer);

  const at::NoGradGuard no_grad;
  optimizer.state().clear();
  for (Fresh& f : fresh) {
    const auto& [name, parameter] = *std::find_if(
        parameters.begin(), parameters.end(),
        [&](const NamedParameter& p) { return p.parameter.unsafeGetTensorImpl() == f.parameter; });
    const StateParts parts = parts_of(kLoadOptimizer, *f.state);
    for (const auto& [part, tensor] : parts.tensors) {
      const auto value = given.find(state_key(name, part));
      if (value != given.end()) *tensor = laid_out_as(parameter, value->second);
    }
    if (parts.step != nullptr) *parts.step = given.at(state_key(name, "step")).item<std::int64_t>();
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(f.state);
  }
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    optimizer.param_groups()[g].options().set_lr(given.at(rate_key(g)).item<double>());
  }
}

void save_state_dict(const NamedTensors& state, const std::string& path) {
  constexpr std::string_view where = "save_state_dict";
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, tensor] : state) {
    if (!tensor.defined() || has_layout(tensor)) {
      fail<ValueError>(where, "'", name, "' is ", describe(tensor),
                       "; pass what full_state_dict(module) gives, which all ranks call");
    }
    if (dict.contains(name)) fail<ValueError>(where, "'", name, "' comes twice");
    dict.insert(name, tensor.detach());
  }
  const std::vector<char> bytes = torch::jit::pickle_save(dict);
  // Beside the file, so that it can be renamed; by process, so that ranks do not meet.
  const std::string beside = concat(path, ".", ::getpid(), ".part");
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(beside, path, error);
  if (!file || error) {
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
    fail<ValueError>(where, "'", path, "' cannot be written",
                     error ? concat(": ", error.message()) : std::string(),
                     "; what was there before is as it was");
  }
}

NamedTensors read_state_dict(const std::string& path) {
  constexpr std::string_view where = "read_state_dict";
  std::ifstream file(path, std::ios::binary);
  if (!file) fail<ValueError>(where, "'", path, "' cannot be read");
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  c10::IValue value;
  try {
    value = torch::jit::pickle_load(bytes);
  } catch (const std::exception& e) {
    fail<ValueError>(where, "'", path, "' is no file of save_state_dict or torch.save: ", e.what());
  }
  NamedTensors out;
  const auto refuse = [&] {
    fail<ValueError>(where, "'", path, "' holds something else than tensors by name");
  };
  if (!value.isGenericDict()) refuse();
  for (const auto& item : value.toGenericDict()) {
    if (!item.key().isString() || !item.value().isTensor()) refuse();
    out.emplace_back(item.key().toStringRef(), item.value().toTensor());
  }
  return out;
}

}  // namespace intarsia
