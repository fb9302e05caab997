// The parameters of an optimizer under the names that they have in a module, and the names of what
// it keeps for them.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <string_view>
#include <vector>

namespace intarsia {

struct NamedParameter {
  std::string name;
  at::Tensor parameter;
};

/// ValueError, which begins with `where`, for one that is none of the module's.
std::vector<NamedParameter> parameters_of(std::string_view where,
                                          const torch::optim::Optimizer& optimizer,
                                          const torch::nn::Module& module);

/// `state.NAME.exp_avg`.
std::string state_key(const std::string& name, const std::string& part);
/// `param_groups.0.lr`.
std::string rate_key(std::size_t group);

}  // namespace intarsia
