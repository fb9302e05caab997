// Collectives among ranks that all live in this process: what a wire would send is copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "intarsia/ledger.h"
#include "intarsia/placement.h"

namespace intarsia {

/// Which members of a Comm make up each group, in the order of their places in it.
struct HostedGroups {
  std::vector<std::vector<std::size_t>> groups;
  std::shared_ptr<Ledger> ledger;
  std::uint32_t ledger_group = 0;
};

/// The lengths that hold for a member's group.
using LengthsOf = std::function<std::span<const std::int64_t>(std::size_t member)>;

/// Each function takes one tensor per member and gives as many, in memory of their own. Partial
/// values are combined in the order of ranks.
namespace hosted {

using Tensors = std::vector<at::Tensor>;

Tensors all_gather(const HostedGroups& here, at::TensorList pieces, std::int64_t dim);
Tensors all_reduce(const HostedGroups& here, at::TensorList partials, const Placement& how);
Tensors reduce_scatter(const HostedGroups& here, at::TensorList partials, std::int64_t dim,
                       const Placement& how, const LengthsOf& lengths);
Tensors all_to_all(const HostedGroups& here, at::TensorList pieces, std::int64_t split_dim,
                   std::int64_t join_dim, const LengthsOf& split_lengths);
Tensors broadcast(const HostedGroups& here, at::TensorList tensors, std::int64_t root);
/// Member i of a group gives its piece to the one at `to[i]`.
Tensors permute(const HostedGroups& here, at::TensorList pieces, std::span<const std::int64_t> to);

}  // namespace hosted
}  // namespace intarsia
