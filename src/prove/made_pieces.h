// Pieces made up for a full tensor in any layout, and the values that pieces stand for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "intarsia/layout.h"
#include "tensor/core/pieces.h"

namespace intarsia {

/// Made-up values of the sizes and dtype of a tensor, of mixed sign. Floats are multiples of 1/8.
at::Tensor noise(const at::Tensor& like, std::uint64_t seed);

/// The coordinates of all ranks of the mesh, in the order of ranks.
std::vector<Coordinate> coordinates(const Mesh& mesh);

/// Which of the partial values of its piece a rank holds: its number among the ranks along all
/// partial axes; 0 where none is partial.
std::int64_t index_among_partial(const Layout& layout, const Coordinate& at);

/// The pieces of `full_tensor` for all ranks of the mesh. Partial values differ on all ranks, are
/// of mixed sign and combine to the value.
std::vector<at::Tensor> made_pieces(const at::Tensor& full_tensor, const Layout& layout,
                                    std::uint64_t seed);

/// The value at a coordinate, with partial axes from `axis` on combined.
at::Tensor value_at(const Pieces& pieces, const Layout& layout, Coordinate at, std::size_t axis);

}  // namespace intarsia
