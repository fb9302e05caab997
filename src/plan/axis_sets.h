// What sets of mesh axes amount to: how many ranks, by which link, how large a piece.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "intarsia/plan.h"
#include "plan/digits.h"

namespace intarsia {

/// What prices ask of sets of axes. A set stands for the groups of ranks that differ along its axes
/// only, and for the axes that shard a tensor.
class AxisSets {
 public:
  /// For a tensor of this shape. REQUIRES: the mesh and the topology of the options outlive it.
  AxisSets(const Mesh& mesh, std::span<const std::int64_t> shape, const PlanOptions& options)
      : mesh_(mesh), bytes_(static_cast<double>(options.element_size)) {
    static const Topology kStandard = Topology::standard();
    topology_ = options.topology != nullptr ? options.topology : &kStandard;
    for (const std::int64_t s : shape) bytes_ *= static_cast<double>(s);
    ranks_.assign(std::size_t{1} << mesh.axes(), 1);
    for (std::size_t m = 1; m < ranks_.size(); ++m) {
      const auto low = static_cast<std::size_t>(std::countr_zero(m));
      ranks_[m] = ranks_[m & (m - 1)] * static_cast<double>(mesh.size(low));
    }
    links_.assign(ranks_.size(), nullptr);
  }

  /// How many sets there are.
  Mask count() const { return ranks_.size(); }
  /// The set of all axes.
  Mask all() const { return count() - 1; }
  /// How many ranks a group has.
  double ranks(Mask axes) const { return ranks_[axes]; }
  /// What a rank holds of the tensor where these axes shard it, as if all pieces were even.
  double piece_bytes(Mask axes) const { return bytes_ / ranks_[axes]; }
  const Topology& topology() const { return *topology_; }
  /// The link of a group.
  const Link& link(Mask axes) {
    const Link*& known = links_[axes];
    if (known == nullptr) {
      AxisList list;
      for_each_bit(axes, [&](std::size_t a) { list.push_back(static_cast<std::int8_t>(a)); });
      known = &topology_->link(mesh_, list);
    }
    return *known;
  }

 private:
  const Mesh& mesh_;
  const Topology* topology_;
  double bytes_;  // of the full tensor
  std::vector<double> ranks_;
  std::vector<const Link*> links_;
};

}  // namespace intarsia
