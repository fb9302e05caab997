// Random ops on distributed tensors: every element's value depends on its global index only.
#pragma once

#include <string_view>

#include "tensor/call/frame.h"

namespace intarsia {

/// Runs the op. REQUIRES: Family::random.
void run_random(Frame& frame);

/// A distribution: fills a piece that holds a region of a tensor.
using Fill =
    std::function<void(const at::Tensor& piece, const struct Region& region, std::uint64_t key)>;

/// Fills the pieces of a tensor that is laid out so, as one draw.
void fill_pieces(World& world, const Layout& layout, std::span<const std::int64_t> sizes,
                 const Pieces& pieces, std::uint64_t key, const Fill& fill);

}  // namespace intarsia
