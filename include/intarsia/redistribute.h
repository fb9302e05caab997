// Moving the pieces of a tensor from one layout to another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <source_location>
#include <span>
#include <vector>

#include "intarsia/ledger.h"
#include "intarsia/plan.h"
#include "intarsia/world.h"

namespace intarsia {

/// The pieces of a tensor with these global sizes, after the plan. `pieces`: one for each rank
/// hosted here that is in the mesh, as `plan.from` cuts them. Inputs are not changed; a result may
/// share memory with its input where nothing had to move.
///
/// COLLECTIVE: all ranks of the mesh, in the same order. Communicates once for each step that says
/// so.
std::vector<at::Tensor> redistribute_pieces(
    World& world, at::TensorList pieces, std::span<const std::int64_t> shape, const Plan& plan,
    const Call& call = {}, std::source_location where = std::source_location::current());

/// The piece of a full tensor that the rank at `at` holds; a view where it is one block. For a
/// partial axis: the tensor at index 0, and what adds nothing elsewhere. Communicates nothing.
at::Tensor cut_piece(const at::Tensor& full, const Layout& layout, const Coordinate& at);

}  // namespace intarsia
