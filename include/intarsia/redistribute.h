// Moving the pieces of tensors from one layout to another.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/ledger.h"
#include "intarsia/plan.h"
#include "intarsia/world.h"

namespace intarsia {

/// Moves the pieces of a tensor by a plan, and returns the new ones. `pieces`: one for each rank
/// hosted here that is in the mesh, laid out as `plan->from`. Inputs are not changed; a result may
/// share memory with its input where nothing had to move. Plans come from `world.plans()`.
///
/// COLLECTIVE: all ranks of the mesh, in the same order. Communicates once for each step that
/// `communicates()`.
std::vector<at::Tensor> redistribute_pieces(
    World& world, at::TensorList pieces, const std::shared_ptr<const Plan>& plan,
    const Call& call = {}, std::source_location where = std::source_location::current());

struct StartOptions {
  /// The caller does not write to what is moved before `wait` has returned, so that it may be read
  /// until then. If false, what would be read that late is copied first: at most the pieces of this
  /// process.
  bool source_stays = false;
};

/// The same, without waiting for the last collective: the caller can compute meanwhile.
Pending start_redistribute(World& world, at::TensorList pieces,
                           const std::shared_ptr<const Plan>& plan, const Call& call = {},
                           std::source_location where = std::source_location::current(),
                           const StartOptions& options = {});

/// A tensor's pieces and where they go.
struct PiecesToMove {
  std::vector<at::Tensor> pieces;
  std::shared_ptr<const Plan> plan;
};

/// The same for many tensors, such as all of a module or of an optimizer: steps over the same ranks
/// are one collective for all tensors of a dtype.
std::vector<std::vector<at::Tensor>> redistribute_pieces(
    World& world, const std::vector<PiecesToMove>& tensors, const Call& call = {},
    std::source_location where = std::source_location::current());

/// A tensor on its way to another layout.
class MovingTensor {
 public:
  /// The tensor in its new layout, outside autograd. Blocks until it is there.
  at::Tensor wait();
  /// Whether `wait` would return at once.
  bool done() const { return pending_.done(); }

 private:
  friend MovingTensor start_redistribute(const at::Tensor&, const Layout&, const StartOptions&);
  MovingTensor(at::Tensor from, std::shared_ptr<const Plan> plan, Pending pending);
  at::Tensor from_;
  std::shared_ptr<const Plan> plan_;
  Pending pending_;
};

/// Begins to redistribute the tensor as it is now. The caller can compute meanwhile, and may write
/// to the tensor. Outside autograd: gradients do not pass. COLLECTIVE: all ranks of the mesh.
MovingTensor start_redistribute(const at::Tensor& tensor, const Layout& layout,
                                const StartOptions& options = {});

/// Many tensors of one world in new layouts: steps over the same ranks are one collective for all
/// tensors of a dtype. Outside autograd. COLLECTIVE: all ranks of the meshes.
std::vector<at::Tensor> redistribute_together(const std::vector<at::Tensor>& tensors,
                                              const std::vector<Layout>& layouts);

/// The tensor in a layout on another mesh of its world. What a rank of the new mesh holds already
/// is not sent; `relabelled` gives the order of ranks for which that is most. Outside autograd.
/// COLLECTIVE: all ranks of both meshes.
at::Tensor redistribute_between(const at::Tensor& tensor, const Layout& layout);

/// The same for many tensors of one world: one exchange for all tensors of a dtype, over the ranks
/// of all their meshes. All of these ranks pass the same list; a rank outside a tensor's mesh
/// passes it without pieces. COLLECTIVE: all ranks of the meshes.
std::vector<at::Tensor> redistribute_between(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Layout>& layouts);

/// How a tensor would get to another layout: steps, bytes, time, memory. Communicates nothing.
std::string explain(const at::Tensor& tensor, const Layout& layout);

/// The memory of redistributions in this world: their buffers, and the pieces that they make.
struct MoveMemory {
  std::int64_t live = 0;        ///< bytes now
  std::int64_t high_water = 0;  ///< the most since `reset_move_memory`
  std::int64_t idle = 0;        ///< kept for the next move
};
MoveMemory move_memory(World& world);
void reset_move_memory(World& world);

/// The piece of a full tensor that the rank at `at` holds; a view where it is one block. Along a
/// partial axis, the rank at index 0 gets the values, and the others get partial values that change
/// nothing. Communicates nothing.
at::Tensor local_piece(const at::Tensor& full, const Layout& layout, const Coordinate& at);

}  // namespace intarsia
