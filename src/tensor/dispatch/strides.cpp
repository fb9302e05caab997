#include "tensor/dispatch/strides.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorUtils.h>

#include <algorithm>

#include "world/session/memory.h"

namespace intarsia {
namespace {

/// Whether ATen would guess from its strides that a tensor is channels last.
bool is_channels_last(const Shape& of_sizes, const Shape& of_strides) {
  const at::IntArrayRef sizes = to_ref(of_sizes);
  const at::IntArrayRef strides = to_ref(of_strides);
  return sizes.size() == 4 ? c10::is_channels_last_strides_2d(sizes, strides)
                           : sizes.size() == 5 && c10::is_channels_last_strides_3d(sizes, strides);
}

/// Strides in the memory format that the operands have.
Shape strides_in_format(const Decision& d, const Shape& sizes, RuleOptions::Format format) {
  using Format = RuleOptions::Format;
  const auto is_last = [&](const Spec& s) {
    if (!s) return false;
    if (format != Format::of_any || s->sizes.size() != 3) {
      return is_channels_last(s->sizes, s->strides);
    }
    // ATen convolves a signal as a contiguous image of one row, which may look like both.
    const Shape image{s->sizes[0], s->sizes[1], 1, s->sizes[2]};
    return is_channels_last(image, contiguous_strides(image));
  };
  bool last = is_last(d.in[format == Format::of_second ? 1 : 0]);
  if (format == Format::of_dense_first) {
    const Geometry& first = d.in[0]->geometry;
    last = !first.contiguous &&
           (last || first.channels_last_contiguous || first.channels_last_3d_contiguous);
  }
  if (format == Format::of_any) last = last || is_last(d.in[1]);
  if (format == Format::of_all) {
    for (const Spec& s : d.in) last &= !s || is_last(s);
  }
  if (last && sizes.size() == 3) return {sizes[1] * sizes[2], 1, sizes[1]};
  if (last && sizes.size() == 4) return to_shape(c10::get_channels_last_strides_2d(to_ref(sizes)));
  if (last && sizes.size() == 5) return to_shape(c10::get_channels_last_strides_3d(to_ref(sizes)));
  return contiguous_strides(sizes);
}

/// Dense strides, with the outermost dimensions first in `order`; others are innermost.
Shape strides_in_dim_order(const Shape& sizes, std::span<const std::int8_t> order) {
  Shape strides(sizes.size(), 0);
  std::int64_t step = 1;
  const auto place = [&](std::size_t d) {
    if (d >= sizes.size() || strides[d] != 0) return;
    strides[d] = step;
    step *= std::max<std::int64_t>(sizes[d], 1);
  };
  for (std::size_t d = sizes.size(); d-- > 0;) {
    const auto listed = std::find(order.begin(), order.end(), static_cast<std::int8_t>(d));
    if (listed == order.end()) place(d);
  }
  for (std::size_t i = order.size(); i-- > 0;) place(static_cast<std::size_t>(order[i]));
  return strides;
}

/// Sizes and strides of one operand of ATen's iterator.
struct Geometric {
  Shape sizes;
  Shape strides;
};

/// The strides that ATen's iterator gives a result: it is asked, on tensors without memory.
Shape strides_by_iterator(const std::vector<Geometric>& operands) {
  const Uncounted uncounted;
  std::vector<at::TensorBase> tensors;
  for (const Geometric& g : operands) {
    tensors.push_back(
        at::detail::empty_strided_meta(to_ref(g.sizes), to_ref(g.strides), at::kByte));
  }
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).add_owned_output(at::TensorBase());
  for (const at::TensorBase& t : tensors) config.add_const_input(t);
  return to_shape(config.build().output(0).strides());
}

/// The same for the result of an element-wise op.
Shape strides_of_elementwise(const Frame& f, const Decision& d, const Shape& sizes) {
  std::vector<Geometric> operands;
  const Shape contiguous = contiguous_strides(sizes);
  bool all_contiguous = true;
  for (std::size_t i = 0; i < d.in.size(); ++i) {
    if (!d.in[i] || f.tensors[i].is_out) continue;
    all_contiguous &= d.in[i]->sizes == sizes && d.in[i]->strides == contiguous;
    operands.push_back({d.in[i]->sizes, d.in[i]->strides});
  }
  if (all_contiguous) return contiguous;
  const bool second_leads = f.info.rule != nullptr && f.info.rule->options.second_leads;
  if (second_leads && operands.size() > 1) std::swap(operands[0], operands[1]);
  return strides_by_iterator(operands);
}

/// The same for x[i, j]: ATen iterates over x with the places of indexed dimensions, which come
/// first unless they stand side by side, and over the indices.
Shape strides_of_indexed(const Decision& d) {
  const SpecData& self = *d.in[0];
  std::vector<std::size_t> indexed;
  std::vector<at::IntArrayRef> index_sizes;
  for (std::size_t i = 1; i < d.in.size(); ++i) {
    if (!d.in[i]) continue;
    indexed.push_back(i - 1);
    index_sizes.push_back(to_ref(d.in[i]->sizes));
  }
  std::vector<std::int64_t> shape = index_sizes[0].vec();
  for (const at::IntArrayRef sizes : index_sizes) shape = at::infer_size(shape, sizes);
  const bool adjacent = indexed.back() - indexed.front() + 1 == indexed.size();
  const std::size_t before = adjacent ? indexed.front() : 0;
  Geometric source;
  const auto add = [&](std::int64_t size, std::int64_t stride) {
    source.sizes.push_back(size);
    source.strides.push_back(stride);
  };
  for (std::size_t k = 0; k < before; ++k) add(self.sizes[k], self.strides[k]);
  for (const std::int64_t size : shape) add(size, 0);
  for (std::size_t k = before; k < self.sizes.size(); ++k) {
    if (std::find(indexed.begin(), indexed.end(), k) != indexed.end()) continue;
    add(self.sizes[k], self.strides[k]);
  }
  std::vector<Geometric> operands{source};
  for (std::size_t i = 1; i < d.in.size(); ++i) {
    if (!d.in[i]) continue;
    Geometric index{Shape(source.sizes.size(), 1), {}};
    const std::size_t dims = d.in[i]->sizes.size();
    for (std::size_t k = 0; k < dims; ++k) {
      index.sizes[before + shape.size() - dims + k] = d.in[i]->sizes[k];
    }
    const auto strides = at::detail::computeStride(to_ref(d.in[i]->sizes), to_ref(d.in[i]->strides),
                                                   at::IntArrayRef(to_ref(index.sizes)));
    index.strides = strides ? to_shape(*strides) : contiguous_strides(index.sizes);
    operands.push_back(index);
  }
  return strides_by_iterator(operands);
}

}  // namespace

std::optional<Shape> strides_by_argument(const Frame& f, const Shape& sizes) {
  const c10::IValue* format = f.argument("memory_format");
  if (format == nullptr || !format->isInt()) return std::nullopt;
  switch (static_cast<at::MemoryFormat>(format->toInt())) {
    case at::MemoryFormat::ChannelsLast:
      return to_shape(c10::get_channels_last_strides_2d(to_ref(sizes)));
    case at::MemoryFormat::ChannelsLast3d:
      return to_shape(c10::get_channels_last_strides_3d(to_ref(sizes)));
    case at::MemoryFormat::Contiguous:
      return contiguous_strides(sizes);
    default:
      return std::nullopt;
  }
}

Shape strides_of_result(const Frame& f, const Decision& d, const Rule& rule, const Shape& sizes,
                        std::size_t index) {
  const bool follows = rule.options.follows_strides &&
                       (index == 0 || rule.options.memory_order.empty()) &&
                       (rule.options.contiguous_overload.empty() ||
                        f.info.op.schema().overload_name() != rule.options.contiguous_overload);
  if (rule.options.keeps_strides) {
    return overlaps(*d.in[0]) ? strides_like(*d.in[0]) : d.in[0]->strides;
  }
  if (!rule.options.memory_order.empty() && !follows) {
    return strides_in_dim_order(sizes, rule.options.memory_order);
  }
  if (rule.options.format != RuleOptions::Format::contiguous) {
    return strides_in_format(d, sizes, rule.options.format);
  }
  if (!follows) return contiguous_strides(sizes);
  if (const auto asked = strides_by_argument(f, sizes)) return *asked;
  // These ask no iterator.
  if (f.info.base_name == "clone" || f.info.base_name == "_to_copy") return strides_like(*d.in[0]);
  if (f.info.base_name == "index" && c10::multiply_integers(to_ref(sizes)) > 0) {
    return strides_of_indexed(d);
  }
  const auto goes_along = [&](const Spec& s) { return !s || s->sizes == sizes; };
  if (f.info.op.hasTag(at::Tag::pointwise) || std::all_of(d.in.begin(), d.in.end(), goes_along)) {
    return strides_of_elementwise(f, d, sizes);
  }
  for (const Spec& s : d.in) {
    if (s && s->sizes == sizes) return strides_like(*s);
  }
  return contiguous_strides(sizes);
}

}  // namespace intarsia
