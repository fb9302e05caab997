// Makes the ranks of a group hold the same model.
#pragma once

#include <string_view>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/replicate.h"

namespace intarsia {

/// Tensors of one dtype and device, which can be stored in one flat buffer.
struct FlatGroup {
  std::vector<at::Tensor> tensors;

  /// Their values one after the other, in memory of its own.
  at::Tensor joined() const;
  /// Writes them back. Autograd does not see it, as with the statistics that batch norm writes.
  void fill_from(const at::Tensor& flat) const;
};
std::vector<FlatGroup> by_dtype_and_device(const std::vector<at::Tensor>& tensors);

/// WorldError, the same on all ranks, that names the first tensor whose name, sizes or dtype
/// differ. COLLECTIVE: the group.
void check_same_model(const Comm& comm, const ReplicatedTensors& tensors, at::Device device);

/// All ranks take the values of the first: one broadcast for each dtype. Gives the bytes.
/// COLLECTIVE: the group.
std::uint64_t take_from_first(const Comm& comm, const std::vector<FlatGroup>& groups);

}  // namespace intarsia
