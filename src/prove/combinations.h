// Combinations: placements for the tensors of a call on one axis, and which of them are tried.
#pragma once

#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/rule.h"
#include "prove/sample.h"

namespace intarsia {

/// One placement per tensor of a sample.
using Combination = std::vector<Placement>;

/// Which placements a tensor may have on one axis: all kinds that its dtype allows.
std::vector<Placement> placements_for(const TensorSample& tensor);

/// The rows of the rule that holds for the op now, for this call: with the placements of the
/// tensors that it has, without those that it could have. None where the op has no rule.
std::vector<Row> rows_of(const Sample& sample, const torch::jit::Stack& arguments);

/// All combinations for a sample and its arguments; of more than `most`, those that the rule names
/// and others by lot.
std::vector<Combination> combinations(const Sample& sample, const torch::jit::Stack& arguments,
                                      std::size_t most);

/// The mesh `[a=n]`.
Mesh one_axis(std::int64_t n);
/// The layouts of a combination. REQUIRES: mesh of one axis.
std::vector<Layout> on_axis(const Mesh& mesh, const Combination& placements);

}  // namespace intarsia
