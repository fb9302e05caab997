// A parameter of fully_shard: how it is stored, how it is used, and how one is made of the other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "intarsia/fully_shard.h"
#include "tensor/core/impl.h"
#include "tensor/move/route.h"

namespace intarsia {

/// Where the piece of one parameter stands in a flat buffer of its group. Every rank has a place of
/// the same length at the same offset, long enough for the longest piece.
struct Slot {
  std::int64_t offset = 0;
  std::int64_t length = 0;
};

/// The piece of one rank, and what a used piece has of it.
struct RankPart {
  Shape sizes;  ///< of the rank's piece
  Part shared;
};

/// A parameter of a group: how it is stored, how it is used, and how the pieces of all shard ranks
/// make up what is used here.
struct Stored {
  std::string name;
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  Spec stored = {};
  Spec used = {};
  Layout gradient =
      {};          ///< in which a gradient is taken: partial along the shard and replicate axes
  Slot slot = {};  ///< in what is gathered, in bytes
  Slot stored_slot = {};    ///< in what is stored, in bytes
  Slot gradient_slot = {};  ///< in what is reduced, in elements
  std::int64_t place = 0;   ///< in the buffer of all that is used, in bytes
  std::size_t lane = 0;
  std::vector<Shape> stored_sizes = {};  ///< of the piece, by hosted rank
  std::vector<Shape> used_sizes = {};
  /// The dimension that the shard axes shard evenly; -1 where pieces are uneven.
  std::int64_t even = -1;
  /// Where they are uneven, by hosted rank and then by shard rank: what its piece and ours share.
  std::vector<std::vector<RankPart>> parts = {};
  std::int64_t longest = 0;  ///< elements of the longest piece of any rank

  /// The parameter, if it lives.
  at::Tensor lock() const;
  /// Whether a gradient of it comes to fully_shard.
  bool gives_gradient() const;

  // Rows are (shard ranks, length): what each shard rank stores, one after the other. The piece of
  // this parameter begins at `offset` of each row, in elements.

  /// Puts what the shard ranks sent, each in its row, into what the hosted rank uses.
  void take_from_rows(std::size_t member, const at::Tensor& rows, std::int64_t offset,
                      const at::Tensor& used) const;
  /// Puts a gradient, as it is used, into the rows of those that store it; or adds it.
  void put_into_rows(std::size_t member, const at::Tensor& gradient, bool add,
                     const at::Tensor& rows, std::int64_t offset) const;
  /// The hosted rank's own piece of what is used, copied to `piece`.
  void take_own(std::size_t member, std::int64_t rank, const at::Tensor& used,
                const at::Tensor& piece) const;
};

/// Describes a parameter, without its slots, for the ranks at `here`.
/// REQUIRES: check_shardable was content with it.
Stored stored_parameter(const ShardedParameter& given, const FullyShardOptions& options,
                        const std::vector<Coordinate>& here);

/// The tensor of a parameter. ValueError where it is not distributed.
DistributedImpl& distributed(const ShardedParameter& parameter);

/// Refuses a parameter that cannot be sharded on a mesh. ValueError that names it.
void check_shardable(const ShardedParameter& parameter, const FullyShardOptions& options,
                     const Mesh& mesh);

/// Bytes of an element.
inline std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// A part of a flat buffer with these sizes, row-major.
at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, const Shape& sizes);

}  // namespace intarsia
