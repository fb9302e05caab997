// Spec: what a distributed tensor is, without its values; interned.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/impl/SizesAndStrides.h>

#include <cstddef>
#include <cstdint>

#include "base/interner.h"
#include "intarsia/boxes.h"
#include "intarsia/layout.h"

namespace intarsia {

/// What ATen keeps about sizes and strides, worked out once per spec.
struct Geometry {
  c10::impl::SizesAndStrides sizes_and_strides;
  bool contiguous = true;
  bool channels_last = false;
  bool channels_last_contiguous = false;
  bool channels_last_3d = false;
  bool channels_last_3d_contiguous = false;
  bool dense = true;
};

/// Layout, global sizes, strides, storage offset and dtype. Strides and offset are those that the
/// full tensor would have; every piece's strides have the same order.
struct SpecData {
  Layout layout;
  Shape sizes;
  Shape strides;
  std::int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  // Derived:
  bool contiguous = true;
  bool partial = false;
  bool norms = false;  ///< partial by a norm: only norms can be its partial values
  /// Its dimensions in the order of memory, the outermost first. Empty where it is contiguous.
  FixedVector<std::int8_t, kMaxDims> order;
  std::int64_t numel = 0;
  Geometry geometry;

  friend bool operator==(const SpecData&, const SpecData&);
};

/// A handle to an interned SpecData: equal specs are the same pointer, so that they can be keys.
/// THREADS: any.
class Spec {
 public:
  Spec() = default;
  Spec(const Layout& layout, const Shape& sizes, const Shape& strides, std::int64_t offset,
       at::ScalarType dtype);
  /// With contiguous strides.
  Spec(const Layout& layout, const Shape& sizes, at::ScalarType dtype);

  Spec(const Spec& other) : node_(other.node_) {
    if (node_ != nullptr) Interner<SpecData>::add_use(node_);
  }
  Spec(Spec&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  Spec& operator=(Spec other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~Spec() {
    if (node_ != nullptr) release(node_);
  }

  explicit operator bool() const { return node_ != nullptr; }
  const SpecData* operator->() const { return &node_->value; }
  const SpecData& operator*() const { return node_->value; }
  std::size_t hash() const { return node_->hash; }
  /// Identity, while a handle lives.
  const void* id() const { return node_; }
  friend bool operator==(const Spec& a, const Spec& b) { return a.node_ == b.node_; }

  /// The same, laid out otherwise; or with another dtype.
  Spec with(const Layout& layout) const;
  Spec with(at::ScalarType dtype) const;
  /// Of a new tensor with the same dimensions in memory, without gaps, that is laid out so.
  Spec fresh(const Layout& layout) const;

  /// `f32[8@dp, 4]`.
  std::string to_string() const;
  /// How many distinct specs are alive in this process.
  static std::size_t alive();

 private:
  using Node = InternedNode<SpecData>;
  static void release(const Node* node);
  const Node* node_ = nullptr;
};

/// The spec of a full tensor that is laid out so, with its dimensions in memory in the same order.
Spec spec_of(const at::TensorBase& full, const Layout& layout);

/// Row-major strides.
Shape contiguous_strides(std::span<const std::int64_t> sizes);

/// Dense strides for the sizes of a tensor or of a piece of it, with dimensions in the order in
/// which `like` has them in memory.
Shape strides_in_order_of(const Shape& sizes, const SpecData& like);

/// Dense strides for a tensor of these sizes that follows one with these strides, as ATen gives
/// them: an expanded dimension, whose stride is 0, stays where it is among the others.
Shape dense_strides(const Shape& sizes, const Shape& strides);
/// Whether some elements share memory, as far as strides show it.
bool overlaps(const SpecData& spec);
/// What is wrong with a write to such a tensor, and what to do.
inline constexpr std::string_view kOverlaps =
    "more than one element of the tensor that is written refers to a single memory location";
inline constexpr std::string_view kOverlapsWayOut = "clone() it before";
/// Those of what follows one tensor.
Shape strides_like(const SpecData& like);

inline Shape to_shape(at::IntArrayRef values) {
  return Shape(std::span<const std::int64_t>(values.data(), values.size()));
}
inline at::IntArrayRef to_ref(const Shape& shape) { return {shape.data(), shape.size()}; }

/// The layout with R for partial.
Layout without_partial(Layout layout);

/// Refuses partial placements whose partial values do not combine exactly for the dtype, with a
/// message that begins with `[where]`.
void check_partial(std::string_view where, at::ScalarType dtype, const Layout& layout);

/// Text of a dtype: `f32`; what has no short name in this library is printed as ATen does.
std::string dtype_text(at::ScalarType dtype);

}  // namespace intarsia
