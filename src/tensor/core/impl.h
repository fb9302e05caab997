// The TensorImpl of a distributed tensor. The one place that knows the dispatch key.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "intarsia/world.h"
#include "tensor/core/on_use.h"
#include "tensor/core/pieces.h"
#include "tensor/core/recent_moves.h"
#include "tensor/core/spec.h"
#include "world/session/memory.h"

namespace intarsia {

class TensorState;
struct Recipe;

/// The dispatch key of distributed tensors.
inline constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse3;

/// What acts on distributed tensors, and so not again on their pieces.
inline constexpr c10::DispatchKeySet kAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                              c10::autocast_dispatch_keyset |
                                              c10::DispatchKeySet(kPieces);
/// While one lives, ops of this thread run below autograd and autocast: for work on pieces.
struct BelowAutograd {
  c10::impl::ExcludeDispatchKeyGuard guard{kAbove};
};

/// What is wrong with a view that is_stale(), and what to do.
inline constexpr std::string_view kStale =
    "a view whose elements had been moved is older than the last write to its base";
inline constexpr std::string_view kStaleWayOut =
    "take the view again after writing, or write through the view";

class DistributedImpl;

/// The memory of a partial tensor, which it shares with all its views.
struct PartialMemory {
  PartialMemory(const Spec& spec, const Pieces& pieces) : spec(spec), pieces(pieces) {}
  /// Of the tensor that all others are views of.
  Spec spec;
  Pieces pieces;
  /// Counts the writes to any of them.
  std::atomic<std::uint32_t> writes = 0;
  /// It holds reduced values now, since something was to be written that partial values cannot
  /// hold. Specs follow when a tensor is next used: see refresh().
  std::atomic<bool> settled = false;
};

/// What only some tensors have; shared by all shallow copies of one (detached or saved ones).
struct Extra {
  /// The pieces of a partial tensor after it was reduced for some op, so that this is done once.
  /// Valid while nothing was written since.
  struct Reduced {
    std::mutex mutex;
    std::optional<Layout> to;  ///< also on ranks outside the mesh, which have no pieces
    Pieces pieces;
    std::uint32_t writes = 0;
  } reduced;
  /// The partial tensor that this one is a view of, and the view: so that reducing either is
  /// enough.
  struct ViewOf {
    c10::intrusive_ptr<DistributedImpl> base;  ///< as it was when the view was taken
    c10::OperatorHandle op;
    torch::jit::Stack arguments;  ///< but the first, which is the base
  };
  std::unique_ptr<ViewOf> view_of;
  /// Of a partial tensor.
  std::shared_ptr<PartialMemory> memory;
  /// Plain tensors share its memory: writes to them cannot be seen, so nothing is remembered.
  std::atomic<bool> exposed = false;

  /// A view whose elements had to be moved: its pieces are views of `moved`, a copy of `base` in
  /// another layout. Writes go on to the base; after a write to the base from elsewhere it is
  /// stale. Views of such a view share it.
  struct MovedCopy {
    c10::intrusive_ptr<DistributedImpl> base;  ///< as it was when the view was taken
    at::Tensor moved;
    std::uint32_t version = 0;
  };
  std::shared_ptr<MovedCopy> moved_copy;

  /// Counts the writes to a tensor of inference mode and to all its views, which ATen does not.
  std::shared_ptr<std::atomic<std::uint32_t>> inference_writes;

  /// Where it comes from when it is used, for a tensor that is stored in another layout.
  std::unique_ptr<OnUse> on_use;

  /// Of a leaf: its gradient stays in the layout in which backward computes it.
  std::atomic<bool> keeps_gradient = false;

  /// How to make the pieces, for a tensor of a build scope that has none yet.
  std::shared_ptr<Recipe> recipe;
};

class DistributedImpl final : public c10::TensorImpl {
 public:
  DistributedImpl(std::shared_ptr<World> world, TensorState& state, Spec spec, Pieces&& pieces);
  DistributedImpl(std::shared_ptr<World> world, TensorState& state, Spec spec, at::Tensor&& piece);
  ~DistributedImpl() override;

  World& world() const { return *world_; }
  const std::shared_ptr<World>& shared_world() const { return world_; }
  TensorState& state() const { return *state_; }
  const Spec& spec() const { return spec_; }
  const Pieces& pieces() const { return pieces_; }
  const std::shared_ptr<Extra>& extra() const { return extra_; }
  Extra& need_extra() {
    if (!extra_) extra_ = std::make_shared<Extra>();
    return *extra_;
  }

  /// The memory that it shares with its views. REQUIRES: a partial tensor.
  const std::shared_ptr<PartialMemory>& memory();
  /// The count of writes that it shares with its views. REQUIRES: it is of inference mode.
  const std::shared_ptr<std::atomic<std::uint32_t>>& inference_writes();
  /// Takes note that its memory was settled. Called wherever a user's tensor comes in.
  void refresh();
  /// A copy that shares pieces, version and what is remembered, and does not change when this
  /// tensor gets other sizes or memory.
  c10::intrusive_ptr<DistributedImpl> snapshot() const;
  /// Whether it is a view whose elements had been moved, and older than the last write to its base.
  bool is_stale() const;
  /// A view is tracked by autograd as its base is, also when it is taken in inference mode.
  void track_like(DistributedImpl& base);
  /// The layout in which its reduced pieces are at hand, if they are.
  std::optional<Layout> reduced_layout() const;
  /// Plain tensors outside share its memory from now on.
  void expose() { need_extra().exposed = true; }
  /// Other pieces and layout for the tensor itself: for parameters of a build scope.
  void replace(const Spec& spec, Pieces pieces);

  /// Takes sizes, layout and pieces of a view of itself.
  void take(const DistributedImpl& view);

  /// The name of the op that made it, if one did.
  const std::string* made_by = nullptr;

  /// Who remembers moves of it, if someone does.
  std::atomic<RecentMoves*> remembered_by = nullptr;

  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                         bool allow_change) const override;
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                         bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) override;
  /// A weak pointer keeps the object, and nothing that it holds: what it remembers may lead back to
  /// it by such a pointer.
  void release_resources() override;
  const char* tensorimpl_type_name() const override { return "intarsia::DistributedImpl"; }
  bool has_storage() const override { return false; }
  /// Refuses, in words that name the tensor and what to write instead: those who save, export or
  /// share memory come here.
  const c10::Storage& storage() const override;

 private:
  DistributedImpl(std::shared_ptr<World> world, TensorState& state, Spec spec);
  void take_metadata();
  /// Moves of it that are remembered are those of other pieces.
  void forget();
  c10::intrusive_ptr<DistributedImpl> shallow_copy() const;

  std::shared_ptr<World> world_;
  TensorState* state_;
  Spec spec_;
  Pieces pieces_;
  std::shared_ptr<Extra> extra_;
};

inline bool is_ours(const at::Tensor& t) {
  return t.defined() && t.unsafeGetTensorImpl()->key_set().has(kKey);
}
/// REQUIRES: is_ours(t).
inline DistributedImpl& impl_of(const at::Tensor& t) {
  return *static_cast<DistributedImpl*>(t.unsafeGetTensorImpl());
}

/// A distributed tensor of these pieces, whose strides follow the spec's.
at::Tensor make_tensor(const std::shared_ptr<World>& world, TensorState& state, const Spec& spec,
                       Pieces pieces);
/// The same for a result in the world of another tensor.
inline at::Tensor make_tensor(const DistributedImpl& like, const Spec& spec, Pieces pieces) {
  return make_tensor(like.shared_world(), like.state(), spec, std::move(pieces));
}

/// The same for one piece, quickly.
at::Tensor make_tensor(const DistributedImpl& like, const Spec& spec, at::Tensor&& piece);

/// The layout in which ops use a distributed tensor: its own, unless it is stored in another one.
Layout layout_in_use(const at::Tensor& tensor);

}  // namespace intarsia
