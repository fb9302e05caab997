// The same values in another layout, below autograd.
#pragma once

#include <string_view>

#include "tensor/core/impl.h"
#include "tensor/move/state.h"

namespace intarsia {

/// Refuses a layout on another mesh than the tensor's.
void check_mesh(std::string_view where, const Layout& layout, const Mesh& mesh);

/// The plan to a layout that a function was asked for. ValueError where there is no exact way.
PlanPointer plan_to(std::string_view where, DistributedImpl& tensor, const Layout& layout);

/// The tensor after a move, of these pieces: dense, and in memory of its own, wherever its pieces
/// happened to stay.
at::Tensor moved_tensor(const DistributedImpl& from, const Layout& layout, Pieces pieces);

/// The tensor in another layout, or one that shares its pieces where that is its own.
at::Tensor relaid(const at::Tensor& tensor, const Layout& layout, const Reason& reason);

}  // namespace intarsia
