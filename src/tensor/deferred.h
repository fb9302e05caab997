// Tensors of a build scope that have no memory yet.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/impl.h"

namespace intarsia {

/// How to make a tensor: ops in place on it, in order, with what they drew.
struct Recipe {
  struct Step {
    c10::OperatorHandle op;
    torch::jit::Stack arguments;  ///< but the first, which is the tensor
    std::optional<std::uint64_t> key;
  };
  std::vector<Step> steps;
};

/// Makes the pieces of a tensor that has none, in this layout.
void materialise(DistributedImpl& tensor, const Layout& layout);

/// Registers the kernel that acts in build scopes. Called once.
void register_deferred();

}  // namespace intarsia
