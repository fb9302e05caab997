// Whether the states of an optimizer are laid out like their parameters.
#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/optim.h"
#include "intarsia/tensor.h"
#include "parallel/optim/optimizer_states.h"

namespace intarsia {
namespace {

std::string name_of(const at::Tensor& parameter, std::size_t group, std::size_t index,
                    const NamedTensors& names) {
  for (const auto& [name, tensor] : names) {
    if (tensor.is_same(parameter)) return name;
  }
  return concat(index, " of group ", group);
}

}  // namespace

void check_parameters(const NamedTensors& trained, const NamedTensors& names) {
  const bool laid_out = std::any_of(names.begin(), names.end(),
                                    [](const auto& item) { return has_layout(item.second); });
  if (!laid_out) return;
  std::vector<std::string> strangers;
  for (const auto& [name, parameter] : trained) {
    const bool known = std::any_of(names.begin(), names.end(), [&](const auto& item) {
      return item.second.is_same(parameter);
    });
    if (!known && !has_layout(parameter)) {
      strangers.push_back(concat(name, " (", describe(parameter), ')'));
    }
  }
  if (strangers.empty()) return;
  fail<ValueError>(
      "check_optimizer", "the optimizer's parameter ", join(strangers, ", "),
      " is none of the module's, whose parameters are distributed: a step on it trains "
      "nothing; make the optimizer after the module was laid out, from "
      "module.parameters()");
}

void check_optimizer(const std::vector<OptimizerState>& states) {
  for (const OptimizerState& s : states) {
    // Single numbers, such as counts of steps, are plain for any parameter.
    if (!s.value.defined() || s.value.dim() == 0 || s.value.sizes() != s.of.sizes()) continue;
    if (!has_layout(s.of) && !has_layout(s.value)) continue;
    if (has_layout(s.of) && has_layout(s.value) && layout_of(s.of) == layout_of(s.value)) continue;
    const std::string way =
        has_layout(s.of) && has_layout(s.value) &&
                layout_of(s.of).mesh() == layout_of(s.value).mesh()
            ? "redistribute() the state"
        : has_layout(s.of) && has_layout(s.value) ? "redistribute_between() the state"
        : has_layout(s.of)                        ? "distribute() the state"
                           : "make the optimizer after the parameter was laid out";
    fail<ValueError>("check_optimizer", "the state ", s.name, " of parameter ", s.parameter, " is ",
                     describe(s.value), ", but the parameter is ", describe(s.of), "; ", way,
                     has_layout(s.of)
                         ? concat(" to ", layout_of(s.of),
                                  ", or make the optimizer after parameters are laid out")
                         : std::string());
  }
}

void check_optimizer(const torch::optim::Optimizer& optimizer, const NamedTensors& names) {
  std::vector<OptimizerState> states;
  NamedTensors trained;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string parameter = name_of(parameters[i], g, i, names);
      trained.emplace_back(parameter, parameters[i]);
      const auto state = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      for (const auto& [name, value] : parts_of("check_optimizer", *state->second).tensors) {
        states.push_back({parameter, name, parameters[i], *value});
      }
    }
  }
  check_parameters(trained, names);
  check_optimizer(states);
}

}  // namespace intarsia
