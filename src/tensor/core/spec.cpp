#include "tensor/core/spec.h"

#include <ATen/ExpandUtils.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor_type.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

// Never destroyed: tensors may outlive static objects.
Interner<SpecData>& table() {
  static auto* const specs = new Interner<SpecData>;
  return *specs;
}

std::size_t hash_of(const SpecData& d) {
  std::uint64_t h = reinterpret_cast<std::uintptr_t>(d.layout.id());
  for (const std::int64_t v : d.sizes) h = hash_mix(h, static_cast<std::uint64_t>(v));
  for (const std::int64_t v : d.strides) h = hash_mix(h, static_cast<std::uint64_t>(v));
  h = hash_mix(h, static_cast<std::uint64_t>(d.offset));
  return hash_mix(h, static_cast<std::uint64_t>(d.dtype));
}

/// Lets ATen work the geometry out.
class Probe final : public c10::TensorImpl {
 public:
  explicit Probe(const SpecData& d)
      : c10::TensorImpl(c10::DispatchKeySet(), c10::scalarTypeToTypeMeta(d.dtype), at::kCPU) {
    set_sizes_and_strides(to_ref(d.sizes), to_ref(d.strides), d.offset);
  }
  Geometry geometry() const {
    return {sizes_and_strides_,           is_contiguous_,       is_channels_last_,
            is_channels_last_contiguous_, is_channels_last_3d_, is_channels_last_3d_contiguous_,
            is_non_overlapping_and_dense_};
  }
};

using DimOrder = FixedVector<std::int8_t, kMaxDims>;

DimOrder order_in_memory(const Shape& sizes, const Shape& strides) {
  const Shape dense = dense_strides(sizes, strides);
  DimOrder order;
  for (std::size_t d = 0; d < sizes.size(); ++d) order.push_back(static_cast<std::int8_t>(d));
  std::stable_sort(order.begin(), order.end(), [&](std::int8_t a, std::int8_t b) {
    return dense[static_cast<std::size_t>(a)] > dense[static_cast<std::size_t>(b)];
  });
  return order;
}

bool has_norm(const Layout& layout) {
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (p.is_partial() && p.reduction() == Reduction::norm && layout.mesh().size(a) > 1) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool operator==(const SpecData& a, const SpecData& b) {
  return a.layout == b.layout && a.sizes == b.sizes && a.strides == b.strides &&
         a.offset == b.offset && a.dtype == b.dtype;
}

Spec::Spec(const Layout& layout, const Shape& sizes, const Shape& strides, std::int64_t offset,
           at::ScalarType dtype) {
  SpecData data;
  data.layout = layout;
  data.sizes = sizes;
  data.strides = strides;
  data.offset = offset;
  data.dtype = dtype;
  data.numel = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  data.partial = layout.has_partial();
  data.norms = data.partial && has_norm(layout);
  data.geometry = c10::make_intrusive<Probe>(data)->geometry();
  data.contiguous = data.geometry.contiguous;
  if (!data.contiguous) data.order = order_in_memory(sizes, strides);
  const std::size_t hash = hash_of(data);
  node_ = table().acquire(std::move(data), hash);
}

Spec::Spec(const Layout& layout, const Shape& sizes, at::ScalarType dtype)
    : Spec(layout, sizes, contiguous_strides(sizes), 0, dtype) {}

void Spec::release(const Node* node) { table().release(node); }

Spec Spec::with(const Layout& layout) const {
  const SpecData& d = **this;
  return layout == d.layout ? *this : Spec(layout, d.sizes, d.strides, d.offset, d.dtype);
}

Spec Spec::with(at::ScalarType dtype) const {
  const SpecData& d = **this;
  return dtype == d.dtype ? *this : Spec(d.layout, d.sizes, d.strides, d.offset, dtype);
}

Spec Spec::fresh(const Layout& layout) const {
  const SpecData& d = **this;
  const bool dense = d.offset == 0 && d.geometry.dense;
  return dense ? with(layout) : Spec(layout, d.sizes, strides_like(d), 0, d.dtype);
}

std::string Spec::to_string() const {
  const SpecData& d = **this;
  // The text form of the type, with whatever name the dtype has.
  const std::string typed = TensorType{DType::f32, d.sizes, d.layout}.to_string();
  return dtype_text(d.dtype) + typed.substr(typed.find('['));
}

std::size_t Spec::alive() { return table().size(); }

Shape contiguous_strides(std::span<const std::int64_t> sizes) {
  Shape strides(sizes.size(), 1);
  std::int64_t step = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

Shape strides_in_order_of(const Shape& sizes, const SpecData& like) {
  if (like.contiguous) return contiguous_strides(sizes);
  Shape strides(sizes.size(), 1);
  std::int64_t step = 1;
  for (std::size_t i = like.order.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(like.order[i]);
    strides[d] = step;
    step *= std::max<std::int64_t>(sizes[d], 1);
  }
  return strides;
}

Shape dense_strides(const Shape& sizes, const Shape& strides) {
  return to_shape(at::infer_dense_strides(to_ref(sizes), to_ref(strides)));
}

bool overlaps(const SpecData& spec) {
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    if (spec.sizes[d] > 1 && spec.strides[d] == 0) return true;
  }
  return false;
}

Shape strides_like(const SpecData& like) {
  return like.geometry.dense ? like.strides : dense_strides(like.sizes, like.strides);
}

Spec spec_of(const at::TensorBase& full, const Layout& layout) {
  const Shape sizes = to_shape(full.sizes());
  const Shape given = to_shape(full.strides());
  const Shape strides = full.numel() == 0                     ? contiguous_strides(sizes)
                        : full.is_non_overlapping_and_dense() ? given
                                                              : dense_strides(sizes, given);
  return {layout, sizes, strides, 0, full.scalar_type()};
}

Layout without_partial(Layout layout) {
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).is_partial()) layout = layout.with(a, Placement::replicate());
  }
  return layout;
}

void check_partial(std::string_view where, at::ScalarType dtype, const Layout& layout) {
  const auto known = dtype_of(dtype);
  for (const Placement& p : layout.placements()) {
    if (p.is_partial() && (!known || !is_exact(p.reduction(), *known))) {
      fail<ValueError>(where, "a tensor of ", dtype_text(dtype), " cannot be ", p,
                       ": its partial values would not combine exactly");
    }
  }
}

std::string dtype_text(at::ScalarType dtype) {
  const auto known = dtype_of(dtype);
  return known ? std::string(to_text(*known)) : std::string(c10::toString(dtype));
}

}  // namespace intarsia
