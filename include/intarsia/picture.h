// Pictures of tensors: which rank holds what.
#pragma once

#include <cstdint>
#include <string>

#include "intarsia/tensor_type.h"

namespace intarsia {

enum class PictureFormat : std::uint8_t {
  text,  ///< for a terminal
  svg,   ///< a file that needs no other file
  html,  ///< the SVG with a table of all ranks; also for notebooks
};

/// What the ranks hold of a tensor. Dimension 0 goes down and 1 to the right; a tensor that is
/// sharded along dimension 2 has a panel for each range of it; further dimensions are named. Every
/// piece is shown up to 16 ranks, and of more the piece of the first:
///
///     const Mesh mesh = Mesh::parse("[dp=2]");
///     std::cout << picture(TensorType::parse("f32[5@dp, 4]", mesh));
///     // prints: f32[5@dp, 4] on [dp=2], 80 B; a rank holds at most 48 B ...
///
/// `intarsia show` draws it, and in Python `intarsia.show(tensor)`.
std::string picture(const TensorType& type, PictureFormat format = PictureFormat::text);

}  // namespace intarsia
