// The gradients of a group of parameters, on their way from autograd to what is stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/fully_shard.h"
#include "parallel/sharded/stored_parameter.h"
#include "tensor/move/state.h"

namespace intarsia {

/// Where a group of parameters is: what its gathers and its gradients have in common.
struct GroupSite {
  std::string name;
  FullyShardOptions options;
  World& world;
  TensorState& state;
  std::vector<Coordinate> here;  ///< of the hosted ranks

  at::Tensor make(const Spec& spec, Pieces pieces) const {
    return make_tensor(world.shared_from_this(), state, spec, std::move(pieces));
  }
  /// How the ledger names what is sent. `sent`: counts it.
  Call call(LedgerTotals& sent) const;
  /// Enters it in the bill.
  void charge(const std::vector<std::string>& axes, std::string transition,
              const LedgerTotals& sent, std::optional<bool> backward = std::nullopt) const;
};

/// Takes gradients one by one, reduces those of the group in one collective for each dtype, and
/// sets the gradients of the parameters. THREADS: guarded by its owner.
class GroupGradients {
 public:
  /// Gives each parameter its place in what is reduced. REQUIRES: site and parameters outlive this.
  GroupGradients(const GroupSite& site, std::vector<Stored>& parameters, const Mesh& mesh);

  /// Takes a gradient, in any layout; adds it to one that was taken before and not yet reduced.
  void take(std::size_t index, const at::Tensor& gradient);
  /// Whether every parameter that needs a gradient has given one since the last reduction.
  bool is_ready() const;
  bool has_any() const;
  /// What is taken is to be kept for the next backward, which adds to it. Parameters get gradients
  /// of zeros meanwhile, by which is seen whether they are dropped.
  void keep();
  /// Drops what was kept for parameters whose gradients were set to none, to zero or to others
  /// since.
  void drop_kept();
  /// What was taken is dropped, what is reduced just now, once it is there, and the parameters'
  /// gradients.
  void forget();
  /// Begins to reduce; what did not arrive counts as zeros. COLLECTIVE: the shard axes.
  void reduce();
  /// Waits for it, and sets the gradients of the parameters that some rank used; whether any was.
  /// COLLECTIVE: the replicate axes.
  bool finish_reduction();
  /// Of one reduction.
  std::uint64_t bytes() const;

 private:
  /// Gradients that are reduced in one dtype. Each rank's part ends with a mark for each parameter:
  /// in how many ranks it was used.
  struct Lane {
    at::ScalarType dtype;
    std::int64_t length = 0;  ///< of one rank's part, in elements
    std::vector<std::size_t> parameters = {};
    /// (ranks, length) by hosted rank; none while none is taken.
    std::vector<at::Tensor> partials = {};
  };
  /// What is kept of a parameter: its gradient then, and how often that had been written.
  struct Kept {
    at::Tensor gradient;
    std::int64_t version = 0;
  };

  void add_to_lane(std::size_t index, Stored& p);
  Lane& begin_lane(std::size_t lane);
  void set_gradient(const Stored& p, const std::vector<at::Tensor>& reduced);

  const GroupSite& site_;
  const std::vector<Stored>& parameters_;
  /// The shard ranks, in a group of its own: ranks that differ begin gathers and reductions in
  /// different orders.
  Comm shard_;
  std::optional<Comm> replicate_;  ///< unset where nothing is replicated
  std::vector<Lane> lanes_;
  std::vector<bool> taken_;    ///< by parameter: in the lane's partials
  std::vector<bool> arrived_;  ///< by parameter: in this backward
  std::vector<Kept> kept_;     ///< by parameter
  std::vector<Pending> reducing_;
};

}  // namespace intarsia
