// Whether the states of an optimizer lie as their parameters do.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/optim.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The tensors that a state of one of torch's optimizers, or of ours, holds.
NamedTensors tensors_of(const torch::optim::OptimizerParamState& state) {
  namespace optim = torch::optim;
  if (const auto* s = dynamic_cast<const optim::AdamParamState*>(&state)) {
    return {{"exp_avg", s->exp_avg()},
            {"exp_avg_sq", s->exp_avg_sq()},
            {"max_exp_avg_sq", s->max_exp_avg_sq()}};
  }
  if (const auto* s = dynamic_cast<const optim::AdamWParamState*>(&state)) {
    return {{"exp_avg", s->exp_avg()},
            {"exp_avg_sq", s->exp_avg_sq()},
            {"max_exp_avg_sq", s->max_exp_avg_sq()}};
  }
  if (const auto* s = dynamic_cast<const optim::SGDParamState*>(&state)) {
    return {{"momentum_buffer", s->momentum_buffer()}};
  }
  if (const auto* s = dynamic_cast<const optim::AdagradParamState*>(&state)) {
    return {{"sum", s->sum()}};
  }
  if (const auto* s = dynamic_cast<const optim::RMSpropParamState*>(&state)) {
    return {{"square_avg", s->square_avg()},
            {"momentum_buffer", s->momentum_buffer()},
            {"grad_avg", s->grad_avg()}};
  }
  if (const auto* s = dynamic_cast<const MuonParamState*>(&state)) {
    return {{"momentum_buffer", s->momentum_buffer()}};
  }
  fail<UnsupportedError>("check_optimizer",
                         "knows the states of Adam, AdamW, SGD, Adagrad, RMSprop and Muon only; "
                         "list those of others as OptimizerState");
}

std::string name_of(const at::Tensor& parameter, std::size_t group, std::size_t index,
                    const NamedTensors& names) {
  for (const auto& [name, tensor] : names) {
    if (tensor.is_same(parameter)) return name;
  }
  return concat(index, " of group ", group);
}

}  // namespace

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
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& parameters = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto state = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (state == optimizer.state().end()) continue;
      const std::string parameter = name_of(parameters[i], g, i, names);
      for (auto& [name, value] : tensors_of(*state->second)) {
        states.push_back({parameter, name, parameters[i], value});
      }
    }
  }
  check_optimizer(states);
}

}  // namespace intarsia
