#include "tensor/impl.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <algorithm>

#include "tensor/state.h"

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

DistributedImpl::~DistributedImpl() {
  if (remembered) state_->forget(*this);
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

const std::shared_ptr<std::atomic<std::uint32_t>>& DistributedImpl::writes() {
  Extra& extra = need_extra();
  if (!extra.writes) extra.writes = std::make_shared<std::atomic<std::uint32_t>>(0);
  return extra.writes;
}

std::optional<Layout> DistributedImpl::reduced_layout() const {
  if (!extra_ || !extra_->writes || extra_->exposed) return std::nullopt;
  const std::scoped_lock lock(extra_->reduced.mutex);
  if (extra_->reduced.writes != *extra_->writes) return std::nullopt;
  return extra_->reduced.to;
}

void DistributedImpl::replace(const Spec& spec, Pieces pieces) {
  spec_ = spec;
  pieces_ = std::move(pieces);
  extra_ = nullptr;
  take_metadata();
}

void DistributedImpl::take(const DistributedImpl& other) {
  spec_ = other.spec_;
  pieces_ = other.pieces_;
  if (extra_) {
    // What it remembers has the old sizes.
    const std::scoped_lock lock(extra_->reduced.mutex);
    extra_->reduced.to.reset();
    extra_->reduced.pieces.clear();
    extra_->view_of.reset();
  }
  take_metadata();
}

namespace {

template <class Version>
c10::intrusive_ptr<c10::TensorImpl> with_version(c10::intrusive_ptr<DistributedImpl> impl,
                                                 Version&& version, bool allow_change) {
  impl->set_version_counter(std::forward<Version>(version));
  impl->set_allow_tensor_metadata_change(allow_change);
  return impl;
}

}  // namespace

c10::intrusive_ptr<c10::TensorImpl> DistributedImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version, bool allow_change) const {
  auto copy = c10::make_intrusive<DistributedImpl>(world_, *state_, spec_, Pieces(pieces_));
  copy->extra_ = extra_;
  return with_version(std::move(copy), version, allow_change);
}

c10::intrusive_ptr<c10::TensorImpl> DistributedImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version, bool allow_change) const {
  auto copy = c10::make_intrusive<DistributedImpl>(world_, *state_, spec_, Pieces(pieces_));
  copy->extra_ = extra_;
  return with_version(std::move(copy), std::move(version), allow_change);
}

void DistributedImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  auto* other = static_cast<DistributedImpl*>(impl.get());
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

at::Tensor in_order(at::Tensor piece, const SpecData& spec) {
  if (spec.contiguous) return piece.is_contiguous() ? piece : piece.contiguous();
  // Strides, from the largest of the spec on, must not grow, but for dimensions of one element.
  const at::IntArrayRef strides = piece.strides();
  FixedVector<std::int8_t, kMaxDims> order;
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    if (piece.size(static_cast<std::int64_t>(d)) > 1) order.push_back(static_cast<std::int8_t>(d));
  }
  if (piece.numel() == 0 || order.empty()) return piece;
  std::stable_sort(order.begin(), order.end(), [&](std::int8_t a, std::int8_t b) {
    return spec.strides[static_cast<std::size_t>(a)] > spec.strides[static_cast<std::size_t>(b)];
  });
  bool fits = true;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    fits &= strides[static_cast<std::size_t>(order[i])] >=
            strides[static_cast<std::size_t>(order[i + 1])];
  }
  if (fits) return piece;
  const Shape dense = strides_in_order_of(to_shape(piece.sizes()), spec.strides);
  at::Tensor copy = at::empty_strided(piece.sizes(), to_ref(dense), piece.options());
  return copy.copy_(piece);
}

}  // namespace intarsia
