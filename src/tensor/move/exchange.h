// Exchanges: parts of pieces that ranks send each other in one call, for one tensor or many.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "intarsia/collectives.h"
#include "tensor/core/spec.h"
#include "tensor/move/pool.h"
#include "tensor/move/route.h"
#include "world/collectives/wire.h"

namespace intarsia {

/// One tensor in one step.
struct Moving {
  const StepRoute* step = nullptr;
  std::vector<at::Tensor> old = {};
  std::vector<at::Tensor> made = {};
  at::ScalarType type = at::kFloat;
};

/// Sends what the routes say, for all tensors in one call, and gives what `then` makes of their new
/// pieces. REQUIRES: one dtype, and steps over the same groups; in parts (Step::chunks) only one
/// tensor.
Pending start_exchange(
    BufferPool& pool, std::vector<Moving> moving,
    const std::function<std::vector<at::Tensor>(std::vector<std::vector<at::Tensor>>)>& then,
    const CallSite& site);

inline std::int64_t elements(const Shape& s) { return c10::multiply_integers(to_ref(s)); }

/// The block of a flat array of these sizes that begins at `at`.
at::Tensor block_of(const at::Tensor& flat, const Shape& block, const Shape& sizes,
                    std::int64_t at);

}  // namespace intarsia
