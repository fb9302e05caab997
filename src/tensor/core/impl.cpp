#include "tensor/core/impl.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "tensor/core/translating.h"

namespace intarsia {
namespace {

/// Autocast acts on our tensors as on local ones of the device.
c10::DispatchKeySet keys_for(c10::DeviceType device) {
  c10::DispatchKeySet keys(kKey);
  if (at::autocast::is_autocast_available(device)) {
    keys = keys.add(at::autocast::get_autocast_dispatch_key_from_device_type(device));
  }
  return keys;
}

}  // namespace

DistributedImpl::DistributedImpl(std::shared_ptr<World> world, TensorState& state, Spec spec)
    : c10::TensorImpl(world->device().type() == at::kCPU
                          ? c10::DispatchKeySet({kKey, c10::DispatchKey::AutocastCPU})
                          : keys_for(world->device().type()),
                      c10::scalarTypeToTypeMeta(spec->dtype), world->device()),
      world_(std::move(world)),
      state_(&state),
      spec_(std::move(spec)) {
  take_metadata();
  set_storage_access_should_throw();
}

DistributedImpl::DistributedImpl(std::shared_ptr<World> world, TensorState& state, Spec spec,
                                 Pieces&& pieces)
    : DistributedImpl(std::move(world), state, std::move(spec)) {
  pieces_ = std::move(pieces);
}

DistributedImpl::DistributedImpl(std::shared_ptr<World> world, TensorState& state, Spec spec,
                                 at::Tensor&& piece)
    : DistributedImpl(std::move(world), state, std::move(spec)) {
  pieces_.push_back(std::move(piece));
}

DistributedImpl::~DistributedImpl() { forget(); }

void DistributedImpl::release_resources() {
  forget();
  pieces_.clear();
  extra_.reset();
  c10::TensorImpl::release_resources();
}

const c10::Storage& DistributedImpl::storage() const {
  translating([&] {
    fail<UnsupportedError>("storage", spec_, " on ", spec_->layout.mesh(),
                           " is stored in pieces and has no memory of its own to save, export or "
                           "share; take full(tensor) or local(tensor), and to save a model "
                           "full_state_dict(module)");
  });
  return c10::TensorImpl::storage();
}

void DistributedImpl::take_metadata() {
  const Geometry& g = spec_->geometry;
  sizes_and_strides_ = g.sizes_and_strides;
  storage_offset_ = spec_->offset;
  numel_ = spec_->numel;
  is_contiguous_ = g.contiguous;
  is_channels_last_ = g.channels_last;
  is_channels_last_contiguous_ = g.channels_last_contiguous;
  is_channels_last_3d_ = g.channels_last_3d;
  is_channels_last_3d_contiguous_ = g.channels_last_3d_contiguous;
  is_non_overlapping_and_dense_ = g.dense;
}

const std::shared_ptr<PartialMemory>& DistributedImpl::memory() {
  Extra& extra = need_extra();
  if (!extra.memory) extra.memory = std::make_shared<PartialMemory>(spec_, pieces_);
  return extra.memory;
}

const std::shared_ptr<std::atomic<std::uint32_t>>& DistributedImpl::inference_writes() {
  auto& writes = need_extra().inference_writes;
  if (!writes) writes = std::make_shared<std::atomic<std::uint32_t>>(0);
  return writes;
}

bool DistributedImpl::is_stale() const {
  if (!extra_ || !extra_->moved_copy) return false;
  DistributedImpl& base = *extra_->moved_copy->base;
  if (base.is_inference()) return *base.inference_writes() > extra_->moved_copy->version;
  return base.version_counter().current_version() > extra_->moved_copy->version;
}

void DistributedImpl::refresh() {
  if (!spec_->norms || !extra_ || !extra_->memory || !extra_->memory->settled) return;
  spec_ = spec_.with(without_partial(spec_->layout));
}

c10::intrusive_ptr<DistributedImpl> DistributedImpl::snapshot() const {
  return c10::static_intrusive_pointer_cast<DistributedImpl>(
      shallow_copy_and_detach(version_counter(), /*allow_change=*/false));
}

std::optional<Layout> DistributedImpl::reduced_layout() const {
  if (!extra_ || !extra_->memory || extra_->exposed) return std::nullopt;
  const std::scoped_lock lock(extra_->reduced.mutex);
  if (extra_->reduced.writes != extra_->memory->writes) return std::nullopt;
  return extra_->reduced.to;
}

void DistributedImpl::forget() {
  if (remembered_by.load() == nullptr) return;
  if (RecentMoves* moves = remembered_by.exchange(nullptr)) moves->forget(this);
}

void DistributedImpl::replace(const Spec& spec, Pieces pieces) {
  forget();
  spec_ = spec;
  pieces_ = std::move(pieces);
  extra_ = nullptr;
  take_metadata();
}

void DistributedImpl::take(const DistributedImpl& view) {
  forget();
  spec_ = view.spec_;
  pieces_ = view.pieces_;
  // Not shared with detached copies, which keep their sizes. It is no view of what it was.
  extra_ = view.extra_;
  if (extra_) extra_->view_of.reset();
  take_metadata();
}

namespace {

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> with_version(c10::intrusive_ptr<DistributedImpl> impl,
                                                 Version&& version, bool allow_change) {
  if (!impl->is_inference()) impl->set_version_counter(std::forward<Version>(version));
  impl->set_allow_tensor_metadata_change(allow_change);
  return impl;
}

}  // namespace

c10::intrusive_ptr<DistributedImpl> DistributedImpl::shallow_copy() const {
  auto copy = c10::make_intrusive<DistributedImpl>(world_, *state_, spec_, Pieces(pieces_));
  copy->extra_ = extra_;
  copy->key_set_ = key_set_;  // of inference mode or not, whatever the mode is now
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> DistributedImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_change) const {
  return with_version(shallow_copy(), version, allow_change);
}

c10::intrusive_ptr<c10::TensorImpl> DistributedImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_change) const {
  return with_version(shallow_copy(), std::move(version), allow_change);
}

void DistributedImpl::track_like(DistributedImpl& base) {
  if (is_inference() == base.is_inference()) return;
  key_set_ = base.key_set_;
  if (!is_inference()) set_version_counter(c10::VariableVersion(0));
}

void DistributedImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  auto* other = static_cast<DistributedImpl*>(impl.get());
  if (other == this) return;
  forget();
  copy_tensor_metadata(other, this, version_counter(), allow_tensor_metadata_change());
  world_ = other->world_;
  state_ = other->state_;
  spec_ = other->spec_;
  pieces_ = other->pieces_;
  extra_ = other->extra_;
}

at::Tensor make_tensor(const std::shared_ptr<World>& world, TensorState& state, const Spec& spec,
                       Pieces pieces) {
  return at::detail::make_tensor<DistributedImpl>(world, state, spec, std::move(pieces));
}

at::Tensor make_tensor(const DistributedImpl& like, const Spec& spec, at::Tensor&& piece) {
  return at::detail::make_tensor<DistributedImpl>(like.shared_world(), like.state(), spec,
                                                  std::move(piece));
}

Layout layout_in_use(const at::Tensor& tensor) {
  const DistributedImpl& impl = impl_of(tensor);
  const OnUse* use = impl.extra() ? impl.extra()->on_use.get() : nullptr;
  if (use == nullptr || !use->holds() || !use->views.empty()) return impl.spec()->layout;
  return use->source->layout_in_use(use->index);
}

}  // namespace intarsia
