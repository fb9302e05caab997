#include <ATen/ATen.h>

#include <map>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/state_dict.h"
#include "intarsia/tensor.h"
#include "parallel/model/named_parameters.h"
#include "parallel/optim/optimizer_states.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "optimizer_tensors";

at::Tensor scalar(double value, at::ScalarType type) {
  return at::full({}, value, at::TensorOptions(type));
}

}  // namespace

NamedTensors optimizer_tensors(const torch::optim::Optimizer& optimizer,
                               const torch::nn::Module& module) {
  NamedTensors out;
  for (const auto& [name, parameter] : parameters_of(kWhere, optimizer, module)) {
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    const StateParts parts = parts_of(kWhere, *state->second);
    for (const auto& [part, tensor] : parts.tensors) {
      if (tensor->defined()) out.emplace_back(state_key(name, part), *tensor);
    }
    if (parts.step != nullptr) {
      out.emplace_back(state_key(name, "step"),
                       scalar(static_cast<double>(*parts.step), at::kLong));
    }
  }
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    out.emplace_back(rate_key(g),
                     scalar(optimizer.param_groups()[g].options().get_lr(), at::kDouble));
  }
  return out;
}

NamedTensors new_optimizer_tensors(const torch::optim::Optimizer& optimizer,
                                   const torch::nn::Module& module,
                                   const std::map<std::string, TensorType>& saved) {
  const at::NoGradGuard no_grad;
  NamedTensors out;
  for (const auto& [name, parameter] : parameters_of(kWhere, optimizer, module)) {
    const auto made = empty_state(kWhere, optimizer);
    const StateParts parts = parts_of(kWhere, *made);
    for (const auto& [part, tensor] : parts.tensors) {
      if (saved.contains(state_key(name, part))) {
        out.emplace_back(state_key(name, part), at::zeros_like(parameter.detach()));
      }
    }
    if (parts.step != nullptr && saved.contains(state_key(name, "step"))) {
      out.emplace_back(state_key(name, "step"), scalar(0, at::kLong));
    }
  }
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    out.emplace_back(rate_key(g), scalar(0, at::kDouble));
  }
  return out;
}

void set_optimizer_tensors(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                           const NamedTensors& tensors) {
  std::map<std::string, at::Tensor> given;
  for (const auto& [name, tensor] : tensors) given[name] = tensor;
  const auto find = [&](const std::string& name) {
    const auto found = given.find(name);
    return found == given.end() ? at::Tensor() : found->second;
  };
  optimizer.state().clear();
  for (const auto& [name, parameter] : parameters_of(kWhere, optimizer, module)) {
    auto made = empty_state(kWhere, optimizer);
    const StateParts parts = parts_of(kWhere, *made);
    bool any = false;
    for (const auto& [part, tensor] : parts.tensors) {
      *tensor = find(state_key(name, part));
      any = any || tensor->defined();
    }
    const at::Tensor step = find(state_key(name, "step"));
    if (parts.step != nullptr && step.defined()) *parts.step = step.item<std::int64_t>();
    if (any) optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
  }
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    if (const at::Tensor rate = find(rate_key(g)); rate.defined()) {
      optimizer.param_groups()[g].options().set_lr(rate.item<double>());
    }
  }
}

}  // namespace intarsia
