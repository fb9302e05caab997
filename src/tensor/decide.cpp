#include "tensor/decide.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/TensorUtils.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "rules/choose.h"
#include "tensor/local_forms.h"
#include "tensor/simulated.h"
#include "tensor/state.h"

namespace intarsia {
namespace {

/// Every operand's spec; refuses operands that cannot be together.
void read_operands(const Frame& f, Decision& d) {
  const Layout replicated = Layout::replicated(f.mesh());
  for (const Frame::Tensor& t : f.tensors) {
    if (!t.given()) {
      d.in.emplace_back();
      continue;
    }
    if (t.impl == nullptr) {
      const bool is_result = t.written && (t.is_out || !f.info.hidden_writes);
      if (is_result && hosted_coordinates(f.lead->world(), f.mesh()).empty()) {
        f.refuse(
            concat("writes a distributed result into a plain tensor, and this process hosts no "
                   "rank of ",
                   f.mesh()),
            "write it on ranks of the mesh only");
      }
      if (t.tensor->layout() != at::kStrided) {
        f.refuse("a sparse or otherwise unstrided tensor is beside distributed ones",
                 "make it dense");
      }
      d.in.emplace_back(replicated, to_shape(t.tensor->sizes()), to_shape(t.tensor->strides()), 0,
                        t.tensor->scalar_type());
      continue;
    }
    if (&t.impl->state() != &f.state()) {
      f.refuse("tensors of two worlds meet", "keep them apart, or go through full()");
    }
    if (t.impl->spec()->layout.mesh() != f.mesh()) {
      f.refuse(concat("tensors lie on different meshes, ", f.mesh(), " and ",
                      t.impl->spec()->layout.mesh()),
               "put all of them on one mesh; axes that a tensor does not use are R");
    }
    d.in.push_back(t.impl->spec());
    if (t.reduced) d.kept_layouts.push_back(*t.reduced);
  }
}

std::vector<Operand> rule_operands(const Decision& d) {
  std::vector<Operand> out;
  for (const Spec& s : d.in) {
    out.push_back(s ? Operand{s->sizes, s->dtype, true} : Operand{});
  }
  return out;
}

std::vector<Candidate> candidates(const Frame& f, const Decision& d, std::size_t count) {
  std::vector<Candidate> out;
  const Layout replicated = Layout::replicated(f.mesh());
  for (std::size_t i = 0; i < count; ++i) {
    const Spec& s = d.in[i];
    if (!s) {
      out.push_back({replicated, 0, std::nullopt, false});
      continue;
    }
    out.push_back({s->layout,
                   static_cast<double>(s->numel) * static_cast<double>(c10::elementSize(s->dtype)),
                   f.tensors[i].reduced, true});
  }
  return out;
}

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

/// The strides that the argument `memory_format` asks for, if it does.
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

/// The strides of a result as ATen would make them.
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

void replicate_all(const Frame& f, Decision& d) {
  d.layouts.assign(f.tensors.size(), Layout::replicated(f.mesh()));
  d.open_results = true;
}

/// The operand that an op in place writes.
std::optional<std::size_t> written_operand(const Frame& f) {
  if (f.info.hidden_writes) return std::nullopt;
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    if (f.tensors[i].written && !f.tensors[i].is_out) return i;
  }
  return std::nullopt;
}

/// Whether operands that are written, and are no results, have to move: then copies are written,
/// and brought back.
bool moves_written(const Frame& f, const Decision& d) {
  if (!f.info.hidden_writes) return false;
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    const Frame::Tensor& t = f.tensors[i];
    if (!t.written || t.is_out || !t.given()) continue;
    if (d.in[i]->layout != d.layouts[i]) return true;
  }
  return false;
}

/// Whether a plain operand is written. Every rank writes a copy of its own, and one of these is
/// brought back: ranks that are played by one process write once.
bool writes_plain(const Frame& f) {
  return std::any_of(f.tensors.begin(), f.tensors.end(), [](const Frame::Tensor& t) {
    return t.written && t.given() && t.impl == nullptr;
  });
}

void check_in_place_sizes(const Frame& f, const Decision& d, std::size_t self,
                          const std::vector<Shape>& sizes) {
  if (sizes.empty() || sizes[0] == d.in[self]->sizes) return;
  f.refuse(concat("an op in place would have to change the sizes (", join(d.in[self]->sizes),
                  ") to (", join(sizes[0]), ")"),
           "use the op that is not in place");
}

/// A plain tensor takes the sizes of the result, as with plain operands.
void check_out_sizes(const Frame& f, Decision& d, const std::vector<Shape>& sizes) {
  std::size_t k = 0;
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    if (!f.tensors[i].is_out || k >= sizes.size()) continue;
    if (d.in[i]->sizes != sizes[k] && f.tensors[i].impl == nullptr) {
      d.in[i] = Spec(d.in[i]->layout, sizes[k], contiguous_strides(sizes[k]), 0, d.in[i]->dtype);
    }
    if (d.in[i]->sizes != sizes[k]) {
      f.refuse(concat("out= has sizes (", join(d.in[i]->sizes), ") where the result has (",
                      join(sizes[k]), "), and a distributed tensor cannot be resized"),
               "pass a tensor of the right sizes, or use the op without out=");
    }
    ++k;
  }
}

/// Whether results of terms are terms of the result: not where whole numbers wrap around in one
/// type and are then read in another, or where each term would be rounded.
bool adds_up(const Question& q, const Decision& d, const Row& row) {
  const c10::IValue* dtype = q.arg("dtype");
  if (dtype != nullptr && dtype->isInt() && is_whole(dtype->toScalarType())) return false;
  for (std::size_t i = 0; i < row.in.size(); ++i) {
    if (row.in[i].is_partial() && d.in[i] && d.in[i]->partial && is_whole(d.in[i]->dtype)) {
      return false;
    }
  }
  return true;
}

void decide_by_rule(const Frame& f, Decision& d) {
  const Rule& rule = *f.info.rule;
  const Question q(f.info.op.schema(), f.arguments(), rule_operands(d));
  const std::vector<Shape> sizes = rule.sizes(q);
  if (sizes.empty() && q.results() > 0) {
    replicate_all(f, d);
    set_form_of_strides(f, rule, d);
    return;
  }
  std::vector<Row> rows = rule.rows(q);
  // A formula may refuse what the op itself does not: to reduce no elements.
  const bool empty = !d.in.empty() && d.in[0] && d.in[0]->numel == 0;
  std::erase_if(rows, [&](const Row& row) {
    return (row.formula && empty) || (row.linear && !row.any_kind && !adds_up(q, d, row));
  });
  const auto operands = candidates(f, d, q.inputs());
  const std::size_t results = std::max<std::size_t>(q.results(), 1);
  const auto self = written_operand(f);
  const Topology& topology = f.state().world().plans().topology();
  std::optional<Choice> choice;
  if (self) {
    check_in_place_sizes(f, d, *self, sizes);
    choice = choose(f.mesh(), operands, rows, results, {.keep = self, .topology = &topology});
    d.brings_back = !choice;
  }
  if (!choice) {
    choice = choose(f.mesh(), operands, rows, results,
                    {.later = f.in_backward, .reduced = d.brings_back, .topology = &topology});
  }
  TORCH_INTERNAL_ASSERT(choice, "running replicated is always possible");
  d.layouts = std::move(choice->in);
  d.layouts.resize(f.tensors.size(), Layout::replicated(f.mesh()));
  d.out_layouts = choice->out;
  if (f.info.has_out) check_out_sizes(f, d, sizes);
  d.by_formula = choice->by_formula;
  d.brings_back |= moves_written(f, d);
  for (std::size_t r = 0; r < q.results(); ++r) {
    Result result{Result::Kind::tensor, {}, 0};
    if (self) {
      result = {Result::Kind::written, {}, *self};
    } else if (f.info.has_out) {
      result = {Result::Kind::written, {}, q.inputs() + r};
    } else {
      // The dtype is filled in from the first local result: it depends on nothing else.
      result.specs.emplace_back(choice->out[r], sizes[r],
                                strides_of_result(f, d, rule, sizes[r], r), 0,
                                d.in[0] ? d.in[0]->dtype : at::kFloat);
    }
    d.results.push_back(std::move(result));
  }
  if (!d.by_formula) set_local_form(f, rule, q, sizes, d);
}

/// New tensors made after another one lie like it if they have its sizes, and are whole otherwise.
void decide_like(const Frame& f, Decision& d) {
  const Mesh& mesh = f.mesh();
  Layout layout = Layout::replicated(mesh);
  const c10::IValue* size = f.argument("size");
  const Shape sizes =
      size != nullptr ? to_shape(at::IntArrayRef(size->toIntVector())) : d.in[0]->sizes;
  if (sizes == d.in[0]->sizes) {
    layout = without_partial(d.in[0]->layout);
  }
  Shape strides = contiguous_strides(sizes);
  if (const c10::IValue* given = f.argument("stride")) {
    // Only dense strides can be cut.
    strides = dense_strides(sizes, to_shape(at::IntArrayRef(given->toIntVector())));
  } else if (size == nullptr) {
    strides = strides_by_argument(f, sizes).value_or(strides_like(*d.in[0]));
  }
  const c10::IValue* dtype = f.argument("dtype");
  const at::ScalarType type = dtype != nullptr && !dtype->isNone()
                                  ? static_cast<at::ScalarType>(dtype->toInt())
                                  : d.in[0]->dtype;
  d.layouts.assign(f.tensors.size(), layout);
  for (std::size_t i = 0; i < d.layouts.size(); ++i) {
    if (d.in[i]) d.layouts[i] = d.in[i]->layout;
  }
  d.results.push_back({Result::Kind::tensor, {Spec(layout, sizes, strides, 0, type)}, 0});
  d.out_layouts = {layout};
  set_local_factory(f, d);
}

/// A rank that has nothing of some dimension, though the operand has, does not run the op: its
/// results are empty, or add nothing to what others compute.
void find_skips(const Frame& f, Decision& d, const std::vector<Coordinate>& here) {
  if (f.info.family != Family::rule || d.open_results) return;
  if (d.runs_empty || f.info.rule->options.runs_empty) return;
  d.skip.assign(here.size(), false);
  bool any = false;
  for (std::size_t m = 0; m < here.size(); ++m) {
    for (std::size_t i = 0; i < d.in.size(); ++i) {
      if (!d.in[i]) continue;
      const Shape local = local_shape(d.layouts[i], d.in[i]->sizes, here[m]);
      for (std::size_t k = 0; k < local.size(); ++k) {
        if (local[k] == 0 && d.in[i]->sizes[k] != 0) d.skip[m] = any = true;
      }
    }
  }
  if (!any) d.skip.clear();
}

bool is_simple(const Frame& f, const Decision& d, const std::vector<Coordinate>& here) {
  const bool same_op = !d.local_call && !d.beforehand && !d.afterwards && !d.decomposes;
  const bool stays = d.moves.empty() && d.skip.empty() && !d.brings_back && !d.moves_view;
  return here.size() == 1 && same_op && stays && !d.by_spec && !d.open_results && !f.info.has_out;
}

/// ATen refuses some writes to elements that share memory. A piece may be too small to show that,
/// and all ranks must refuse alike.
void check_overlap(const Frame& f, const Decision& d) {
  const std::string& name = f.info.base_name;
  const bool refuses = f.info.op.hasTag(at::Tag::pointwise) || name == "copy" || name == "zero";
  if (!f.info.in_place || !refuses) return;
  for (std::size_t i = 0; i < d.in.size(); ++i) {
    const bool written = f.tensors[i].written && f.tensors[i].impl != nullptr;
    if (written && d.in[i]->numel > 0 && overlaps(*d.in[i])) f.refuse(kOverlaps, kOverlapsWayOut);
  }
}

}  // namespace

std::vector<Coordinate> hosted_coordinates(const World& world, const Mesh& mesh) {
  std::vector<Coordinate> out;
  for (const std::int64_t rank : world.hosted()) {
    if (const auto at = mesh.coordinate_of(rank)) out.push_back(*at);
  }
  return out;
}

void plan_moves(const Frame& f, Decision& d) {
  bool any = false;
  std::vector<PlanPointer> moves(d.in.size());
  for (std::size_t i = 0; i < d.in.size(); ++i) {
    if (!d.in[i] || d.in[i]->layout == d.layouts[i] || f.tensors[i].is_out) continue;
    moves[i] = f.state().plan(d.in[i], d.layouts[i]);
    if (!moves[i]) {
      f.refuse(concat("no exact way leads from ", d.in[i]->layout.placements_text(), " to ",
                      d.layouts[i].placements_text()),
               "redistribute it to R first");
    }
    any = true;
  }
  if (any) d.moves = std::move(moves);
}

Decision decide(const Frame& f) {
  Decision d;
  read_operands(f, d);
  check_overlap(f, d);
  switch (f.info.family) {
    case Family::rule:
      decide_by_rule(f, d);
      break;
    case Family::view:
      decide_view(f, d);
      break;
    case Family::like:
      decide_like(f, d);
      break;
    case Family::each:
      decide_each(f, d);
      break;
    default:
      replicate_all(f, d);
  }
  plan_moves(f, d);
  if (d.by_formula) return d;
  if (f.info.family == Family::view) d.moves_view = !d.moves.empty();
  if (d.open_results && (f.info.in_place || f.info.has_out || f.info.hidden_writes)) {
    d.brings_back = true;
  }
  d.brings_back |= writes_plain(f);
  const auto here = hosted_coordinates(f.lead->world(), f.mesh());
  find_skips(f, d, here);
  if (f.lead->world().simulated()) leave_out_values(f, d);
  d.simple = is_simple(f, d, here);
  return d;
}

}  // namespace intarsia
