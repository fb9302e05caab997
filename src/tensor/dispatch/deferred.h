// Tensors of a build scope that have no memory yet.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tensor/core/impl.h"

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

/// While this thread defers, factories make tensors without memory, replicated on the mesh, and
/// what initialises them is written down.
void begin_deferring(World& world, const Mesh& mesh);
void end_deferring();
bool defers();

/// Whether the tensor has no memory yet.
bool is_deferred(const at::Tensor& tensor);
/// Whether it is deferred, and nothing sets its values.
bool is_unset(const at::Tensor& tensor);

/// Makes the pieces of a tensor that has none, in this layout.
void materialise(DistributedImpl& tensor, const Layout& layout);

/// Registers the kernel that acts in build scopes. Called once.
void register_deferred();

}  // namespace intarsia
