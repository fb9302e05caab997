// Boundaries: what passes from one stage to the next, without its values.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/tensor_type.h"

namespace intarsia::pipeline {

using Tensors = std::vector<at::Tensor>;

/// A tensor that is passed on.
struct PassedType {
  TensorType from;  ///< where it is
  TensorType to;    ///< where it arrives; both without a mesh for a plain tensor
  bool is_plain = false;
  bool trains = false;  ///< a gradient comes back
  friend bool operator==(const PassedType&, const PassedType&) = default;

  at::ScalarType dtype() const;
};

/// Unset for an undefined tensor. Text form, a line each: `none`, `plain f32[4, 8]`,
/// `f32[4@dp, 8] -> f32[4@dp, 8]`, `trains f32[4@tp, 8] -> f32[4, 8]`.
struct Boundary {
  std::vector<std::optional<PassedType>> values;

  std::string to_string() const;
  static Boundary parse(std::string_view text, const Mesh& from, const Mesh& to);
  friend bool operator==(const Boundary&, const Boundary&) = default;
};

/// The placements of a layout on another mesh, by the names of axes. Axes that only the other one
/// has are R. Partial values stay partial where both meshes have the same axes, and are R
/// elsewhere.
Layout carried(const Layout& layout, const Mesh& to);

/// Whether two meshes have the same axes, so that each rank of one has a partner in the other.
bool are_alike(const Mesh& a, const Mesh& b);

/// What these tensors are, of a stage on the mesh `from`, and will be on the mesh `to`. ValueError
/// for those of other meshes, UnsupportedError for those that cannot be sent; `where` begins
/// messages.
Boundary boundary_of(std::string_view where, const Tensors& values, const Mesh& from,
                     const Mesh& to);

/// What comes back: gradients of those that train, in their layouts with R for partial.
Boundary gradients_of(const Boundary& boundary);

}  // namespace intarsia::pipeline
