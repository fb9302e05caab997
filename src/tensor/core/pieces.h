// Pieces: the local tensors of which a distributed tensor consists.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "tensor/core/spec.h"

namespace intarsia {

/// One local tensor for each rank of the mesh that this process hosts: normally one.
using Pieces = c10::SmallVector<at::Tensor, 1>;

/// The piece with its strides in the spec's order: itself, or a copy.
at::Tensor in_order(at::Tensor piece, const SpecData& spec);

/// The same for all pieces of a new tensor.
Pieces in_order(Pieces pieces, const SpecData& spec);

/// Pieces that share no memory with those given, of the same ranks: what does is copied. Ranks may
/// differ in that, as a slice shares memory and an empty piece does not, so no op is called.
template <class Tensors>
Tensors apart_from(at::TensorList others, Tensors pieces) {
  for (std::size_t m = 0; m < pieces.size() && m < others.size(); ++m) {
    if (pieces[m].is_alias_of(others[m])) pieces[m] = pieces[m].clone();
  }
  return pieces;
}

}  // namespace intarsia
