// ShardGroup: parameters that are gathered together, and whose gradients are reduced together.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/collectives.h"
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
  Spec stored;
  Spec used;
  Layout gradient;     ///< in which a gradient is taken: terms along the shard and replicate axes
  Slot slot;           ///< in what is gathered, in bytes
  Slot stored_slot;    ///< in what is stored, in bytes
  Slot gradient_slot;  ///< in what is reduced, in elements
  std::int64_t place = 0;  ///< in the buffer of all that is used, in bytes
  std::size_t lane = 0;
  std::vector<Shape> stored_sizes = {};  ///< of the piece, by hosted rank
  std::vector<Shape> used_sizes = {};
  /// The dimension that the shard ranks cut into equal parts; -1 where they are not equal.
  std::int64_t even = -1;
  /// Where they are not, by hosted rank and then by shard rank: what its piece and ours share.
  std::vector<std::vector<RankPart>> parts = {};

  /// The parameter, if it lives.
  at::Tensor lock() const;
};

/// The tensor of a parameter. ValueError where it is not distributed.
DistributedImpl& distributed(const ShardedParameter& parameter);

/// Refuses a parameter that cannot be sharded on a mesh. ValueError that names it.
void check_shardable(const ShardedParameter& parameter, const FullyShardOptions& options,
                     const Mesh& mesh);

/// THREADS: guarded by its owner.
class ShardGroup {
 public:
  /// Cuts the parameters that are whole along the shard axes, and moves all pieces into one buffer.
  /// REQUIRES: check_shardable was content with all of them.
  ShardGroup(ParameterGroup group, const FullyShardOptions& options, World& world,
             const Mesh& mesh);

  const std::string& name() const { return name_; }
  const std::vector<Stored>& parameters() const { return parameters_; }
  GroupReport& report() { return report_; }
  /// Whether some parameter needs a gradient now.
  bool trains() const;

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

  // ---- reducing --------------------------------------------------------------------------------
  /// Takes a gradient, in any layout; adds it to one that was taken before and not yet reduced.
  void take_gradient(std::size_t index, const at::Tensor& gradient);
  /// Whether every parameter that needs a gradient has given one since the last reduction.
  bool is_ready() const;
  bool has_any() const;
  /// What is taken is to be kept for the next backward, which adds to it. Parameters get gradients
  /// of zeros meanwhile, by which is seen whether they are dropped.
  void keep_gradients();
  /// Drops what was kept for parameters whose gradients were set to none, to zero or to others
  /// since.
  void drop_kept_gradients();
  /// What was taken is dropped, what is reduced just now, once it is there, and the parameters'
  /// gradients.
  void forget_gradients();
  /// Begins to reduce; what did not arrive counts as zeros. COLLECTIVE: the shard axes.
  void reduce();
  bool is_reducing() const { return !reducing_.empty(); }
  /// Waits for it, and sets the gradients of the parameters that some rank used; whether any was.
  /// COLLECTIVE: the replicate axes.
  bool finish_reduction();

 private:
  /// Gradients that are reduced in one dtype. Each rank's part ends with a mark for each parameter:
  /// in how many ranks it was used.
  struct Lane {
    at::ScalarType dtype;
    std::int64_t length = 0;  ///< of one rank's part, in elements
    std::vector<std::size_t> parameters = {};
    std::vector<at::Tensor> terms =
        {};  ///< (ranks, length) by hosted rank; none while none is taken
  };

  Stored describe_parameter(const ShardedParameter& given);
  /// The pieces that the shard ranks hold of what is used by a hosted rank.
  void find_parts(Stored& p);
  void store();
  std::vector<at::Tensor> gather_input();
  void unpack(const Stored& p, std::size_t member, const at::Tensor& gathered,
              const at::Tensor& used) const;
  void pack(const Stored& p, std::size_t member, const at::Tensor& gradient, bool add);
  Lane& begin_lane(std::size_t lane);
  void set_gradient(const Stored& p, const std::vector<at::Tensor>& reduced);
  bool is_alone() const { return shard_.size() == 1; }
  at::Tensor make(const Spec& spec, Pieces pieces) const;

  std::string name_;
  const FullyShardOptions options_;
  World& world_;
  TensorState& state_;
  Mesh mesh_;
  Comm shard_;  ///< for gathers
  Comm
      reduced_;  ///< the same ranks for reductions: ranks that differ call both in different orders
  std::optional<Comm> replicate_;  ///< none where nothing is replicated
  std::string shard_text_;
  std::string replicate_text_;
  std::vector<Coordinate> here_;
  std::vector<Stored> parameters_;
  std::int64_t length_ = 0;         ///< bytes of one rank's part of what is gathered
  std::int64_t stored_length_ = 0;  ///< and of what it stores
  std::int64_t used_length_ = 0;    ///< and of all that is used
  bool casts_ = false;
  std::vector<at::Tensor> stored_;  ///< bytes, by hosted rank: all pieces of this group
  std::optional<Pending> gathering_;
  std::vector<at::Tensor> used_;
  std::vector<Lane> lanes_;
  std::vector<bool> taken_;    ///< by parameter: in the lane's terms
  std::vector<bool> arrived_;  ///< by parameter: in this backward
  /// By parameter, where something is kept: its gradient then, and how often that had been written.
  struct Kept {
    at::Tensor gradient;
    std::uint32_t version = 0;
  };
  std::vector<Kept> kept_;
  std::vector<Pending> reducing_;
  GroupReport report_;
};

}  // namespace intarsia
