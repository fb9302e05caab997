// ShardGroup: parameters that are gathered together, and whose gradients are reduced together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/fully_shard.h"
#include "parallel/sharded/group_gradients.h"
#include "parallel/sharded/stored_parameter.h"

namespace intarsia {

/// THREADS: guarded by its owner.
class ShardGroup {
 public:
  /// Shards the parameters that are replicated along the shard axes, and moves all pieces into one
  /// buffer. REQUIRES: check_shardable was content with all of them.
  ShardGroup(ParameterGroup group, const FullyShardOptions& options, World& world,
             const Mesh& mesh);

  ShardGroup(const ShardGroup&) = delete;
  ShardGroup& operator=(const ShardGroup&) = delete;

  const std::vector<Stored>& parameters() const { return parameters_; }
  GroupReport& report() { return report_; }
  /// Whether some parameter needs a gradient now.
  bool trains() const;
  GroupGradients& gradients() { return gradients_; }

  // ---- gathering -------------------------------------------------------------------------------
  /// Gathered, or on its way.
  bool is_here() const { return gathering_.has_value() || !used_.empty(); }
  /// Begins to gather. COLLECTIVE: the shard axes.
  void gather();
  /// Waits for it; the seconds that this took.
  double complete();
  void drop();
  /// A parameter as it is used. REQUIRES: complete() was called.
  const at::Tensor& used(std::size_t index) const { return used_[index]; }

 private:
  void place();
  void store();
  std::vector<at::Tensor> gather_input();
  bool is_alone() const { return shard_.size() == 1; }

  const GroupSite site_;
  Comm shard_;
  std::vector<Stored> parameters_;
  std::int64_t length_ = 0;         ///< bytes of one rank's part of what is gathered
  std::int64_t stored_length_ = 0;  ///< and of what it stores
  std::int64_t used_length_ = 0;    ///< and of all that is used
  bool casts_ = false;
  std::vector<at::Tensor> stored_;  ///< bytes, by hosted rank: all pieces of this group
  std::optional<Pending> gathering_;
  std::vector<at::Tensor> used_;
  GroupGradients gradients_;
  GroupReport report_;
};

}  // namespace intarsia
