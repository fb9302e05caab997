// The options of an optimizer's groups as JSON, by the names that they have in Python.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <string_view>

#include "checkpoint/format/json.h"

namespace intarsia {

/// UnsupportedError, which begins with `where`, for other optimizers than Adam, AdamW, SGD,
/// Adagrad, RMSprop and Muon.
checkpoint::Json options_json(std::string_view where, torch::optim::OptimizerOptions& options);

/// Sets those that are there; others stay. Python has options that C++ has not: ValueError, which
/// calls the group `name`, where one of them is in use. `only_check`: sets nothing.
void set_options(std::string_view where, torch::optim::OptimizerOptions& options,
                 const checkpoint::Json& saved, const std::string& name, bool only_check);

}  // namespace intarsia
