// What the optimizers that this library knows keep for a parameter.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace intarsia {

/// The parts of one state, to be read and set. Tensors may be undefined.
struct StateParts {
  std::vector<std::pair<std::string, at::Tensor*>> tensors;
  std::int64_t* step = nullptr;  ///< none where the optimizer counts no steps
};

/// UnsupportedError, which begins with `where`, for states of other optimizers than Adam, AdamW,
/// SGD, Adagrad, RMSprop and Muon.
StateParts parts_of(std::string_view where, torch::optim::OptimizerParamState& state);

/// An empty state for an optimizer of these kinds; UnsupportedError for others.
std::unique_ptr<torch::optim::OptimizerParamState> empty_state(
    std::string_view where, const torch::optim::Optimizer& optimizer);

}  // namespace intarsia
