// Views of distributed tensors.
#include <ATen/ATen.h>

#include <array>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/view.h"
#include "tensor/dispatch/decide.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

/// The layouts before and after a view: `from` is where the tensor must be moved to.
struct ViewLayouts {
  Layout from;
  Layout to;
};

Shape int_shape(const c10::IValue& value) { return to_shape(at::IntArrayRef(value.toIntVector())); }

/// A tensor with the spec's geometry and no memory, on which a view can be tried.
at::Tensor shadow(const SpecData& spec) {
  std::int64_t reach = spec.offset + 1;
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    reach += std::max<std::int64_t>(spec.sizes[d] - 1, 0) * spec.strides[d];
  }
  const auto bytes = static_cast<std::size_t>(reach) * c10::elementSize(spec.dtype);
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, at::kCPU), nullptr,
                   false),
      c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(spec.dtype));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(to_ref(spec.sizes), to_ref(spec.strides),
                                                 spec.offset);
  return t;
}

/// The view as ATen does it, on the shadow.
std::vector<at::Tensor> try_view(const Frame& f, const SpecData& spec) {
  torch::jit::Stack stack(f.arguments().begin(), f.arguments().end());
  stack[0] = shadow(spec);
  f.info.op.callBoxed(&stack);
  if (stack[0].isTensorList()) return stack[0].toTensorVector();
  return {stack[0].toTensor()};
}

/// A layout after dimensions were renamed: `place[d]` is where input dimension d is, -1 where it
/// must not be sharded.
ViewLayouts renamed(const Layout& layout, const std::vector<int>& place) {
  const Mesh& mesh = layout.mesh();
  Layout from = layout;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (p.is_shard() && place[static_cast<std::size_t>(p.dim())] < 0) {
      from = from.with(a, Placement::replicate());
    }
  }
  std::vector<Placement> placements;
  LayoutOptions options;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const Placement& p = from.placement(a);
    placements.push_back(
        p.is_shard() ? Placement::strided_shard(place[static_cast<std::size_t>(p.dim())], p.split())
                     : p);
  }
  for (std::size_t d = 0; d < place.size(); ++d) {
    const AxisList axes = from.axes_of(static_cast<int>(d));
    if (axes.size() < 2) continue;
    std::vector<std::string> names;
    for (const std::int8_t a : axes) names.push_back(mesh.name(static_cast<std::size_t>(a)));
    options.order.emplace_back(place[d], std::move(names));
  }
  return {from, Layout(mesh, placements, options)};
}

/// Views that change values leave a tensor partial only by reductions that commute with them. A
/// negated maximum is not the maximum of negated values, and no reduction commutes with reading the
/// bits as another type.
Layout with_partial_kept(const Frame& f, Layout layout) {
  const std::string& op = f.info.base_name;
  const bool as_other_type = op == "view" && f.argument("dtype") != nullptr;
  const bool linear = op == "_neg_view" || op == "view_as_real" || op == "view_as_complex";
  if (!as_other_type && !linear) return layout;
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (!p.is_partial()) continue;
    const bool sums = p.reduction() == Reduction::sum || p.reduction() == Reduction::avg;
    if (as_other_type || !sums) layout = layout.with(a, Placement::replicate());
  }
  return layout;
}

/// Whether as_strided gives the tensor itself but for strides that lead nowhere: those of
/// dimensions of one element or none.
bool strides_alone_differ(const Frame& f, const SpecData& spec) {
  const c10::IValue* start = f.argument("storage_offset");
  if (int_shape(*f.argument("size")) != spec.sizes) return false;
  if (!start->isNone() && start->toInt() != spec.offset) return false;
  const Shape strides = int_shape(*f.argument("stride"));
  for (std::size_t d = 0; d < spec.sizes.size(); ++d) {
    if (spec.sizes[d] > 1 && strides[d] != spec.strides[d]) return false;
  }
  return true;
}

ViewLayouts by_view(const Layout& layout, const View& view) {
  const ViewedLayout viewed = view_layout(layout, view);
  if (viewed.layout) return {layout, *viewed.layout};
  return {viewed.crossing->move_to, viewed.crossing->then};
}

std::vector<int> keep_all(std::size_t dims) {
  std::vector<int> place;
  for (std::size_t d = 0; d < dims; ++d) place.push_back(static_cast<int>(d));
  return place;
}

/// Where dimensions go when `removed` ones must not be sharded; `drop`: they are also taken away.
std::vector<int> without(std::size_t dims, const std::vector<int>& removed, bool drop) {
  std::vector<int> place;
  int next = 0;
  for (int d = 0; d < static_cast<int>(dims); ++d) {
    const bool hit = std::find(removed.begin(), removed.end(), d) != removed.end();
    place.push_back(hit ? -1 : next);
    if (!hit || !drop) ++next;
  }
  return place;
}

ViewLayouts layouts_of(const Frame& f, const SpecData& spec, const Shape& out) {
  const std::string& op = f.info.base_name;
  const Layout layout = with_partial_kept(f, spec.layout);
  const std::size_t dims = spec.sizes.size();
  const auto dim = [&](std::string_view name) {
    const c10::IValue* value = f.argument(name);
    return normalize_dim(f.info.name, value == nullptr ? 0 : value->toInt(),
                         std::max<std::size_t>(dims, 1));
  };
  const bool same_dims =
      op == "detach" || op == "alias" || op == "lift_fresh" || op == "_conj" || op == "_neg_view" ||
      op == "view_as_real" || op == "_conj_physical" ||
      (op == "view" && f.argument("dtype") != nullptr && out.size() == dims && out == spec.sizes);
  if (same_dims || (op == "as_strided" && strides_alone_differ(f, spec)))
    return renamed(layout, keep_all(dims));
  if ((op == "t" && dims < 2) || (op == "transpose" && dims == 0))
    return renamed(layout, keep_all(dims));
  if (op == "t") return by_view(layout, View::transpose(spec.sizes, 0, 1));
  if (op == "transpose")
    return by_view(layout, View::transpose(spec.sizes, dim("dim0"), dim("dim1")));
  if (op == "permute") {
    const auto order = f.argument("dims")->toIntVector();
    return by_view(layout, View::permute(spec.sizes, order));
  }
  if (op == "expand")
    return by_view(layout, View::expand(spec.sizes, int_shape(*f.argument("size"))));
  if (op == "unsqueeze") {
    return by_view(layout, View::unsqueeze(spec.sizes, f.argument("dim")->toInt()));
  }
  if (op == "squeeze" || op == "_unsafe_view" || op == "_reshape_alias" ||
      (op == "view" && f.argument("dtype") == nullptr)) {
    return by_view(layout, View::reshape(spec.sizes, out));
  }
  if (op == "select" || op == "unbind") return renamed(layout, without(dims, {dim("dim")}, true));
  if (op == "slice" || op == "split" || op == "split_with_sizes") {
    return renamed(layout, out == spec.sizes && op == "slice" ? keep_all(dims)
                                                              : without(dims, {dim("dim")}, false));
  }
  if (op == "unfold") return renamed(layout, without(dims, {dim("dimension")}, false));
  if (op == "diagonal") return renamed(layout, without(dims, {dim("dim1"), dim("dim2")}, true));
  if (op == "view_as_complex")
    return renamed(layout, without(dims, {static_cast<int>(dims) - 1}, true));
  // Any other view: of the full tensor.
  return renamed(layout, std::vector<int>(dims, -1));
}

/// Parts of a dimension that is sharded in blocks, where each part consists of entire blocks: no
/// element moves. Gates and heads that one matrix computes are taken apart like this.
struct BlockParts {
  std::size_t dim = 0;
  std::int64_t block = 0;
  std::vector<Range> parts;  ///< in blocks
};

std::optional<BlockParts> block_parts(const Frame& f, const SpecData& spec,
                                      const std::vector<at::Tensor>& tried) {
  const std::string& op = f.info.base_name;
  if (op != "slice" && op != "split" && op != "split_with_sizes") return std::nullopt;
  const std::size_t dims = spec.sizes.size();
  const c10::IValue* given = f.argument("dim");
  const int dim = normalize_dim(f.info.name, given == nullptr ? 0 : given->toInt(), dims);
  const AxisList axes = spec.layout.axes_of(dim);
  if (axes.size() != 1 || tried.empty()) return std::nullopt;
  const std::int64_t blocks = spec.layout.placement(static_cast<std::size_t>(axes[0])).split();
  const std::int64_t size = spec.sizes[static_cast<std::size_t>(dim)];
  if (blocks == 1 || size == 0 || size % blocks != 0) return std::nullopt;
  BlockParts out{static_cast<std::size_t>(dim), size / blocks, {}};
  std::int64_t begin = 0;
  if (op == "slice") {
    if (f.argument("step")->toInt() != 1) return std::nullopt;
    const c10::IValue* start = f.argument("start");
    begin = start->isNone() ? 0 : start->toInt();
    if (begin < 0) begin += size;
    begin = std::clamp<std::int64_t>(begin, 0, size);
  }
  for (const at::Tensor& t : tried) {
    const std::int64_t end = begin + t.size(dim);
    if (begin == end || begin % out.block != 0 || end % out.block != 0) return std::nullopt;
    out.parts.push_back({begin / out.block, end / out.block});
    begin = end;
  }
  return out;
}

/// Sets what each hosted rank does, which has a share of every block. Returns the layouts of the
/// parts.
std::vector<Layout> split_into_parts(const Frame& f, const SpecData& spec, const BlockParts& parts,
                                     Decision& d) {
  const auto axis = static_cast<std::size_t>(spec.layout.axes_of(static_cast<int>(parts.dim))[0]);
  for (const Coordinate& at : hosted_coordinates(f.lead->world(), f.mesh())) {
    const std::int64_t blocks = spec.sizes[parts.dim] / parts.block;
    const std::int64_t share = local_shape(spec.layout, spec.sizes, at)[parts.dim] / blocks;
    if (f.info.base_name == "slice") {
      const Range& part = parts.parts[0];
      d.local.arguments.push_back({{f.place_of("start"), c10::IValue(part.begin * share)},
                                   {f.place_of("end"), c10::IValue(part.end * share)}});
      continue;
    }
    std::vector<std::int64_t> sizes;
    for (const Range& part : parts.parts) sizes.push_back(part.size() * share);
    d.local.arguments.push_back({{1, c10::IValue(sizes)}});
    d.local.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::split_with_sizes", "");
  }
  std::vector<Layout> out;
  for (const Range& part : parts.parts) {
    out.push_back(
        spec.layout.with(axis, Placement::strided_shard(static_cast<int>(parts.dim), part.size())));
  }
  return out;
}

/// Ops whose arguments say sizes, and so differ from rank to rank: all of them are local views.
bool takes_sizes(const Frame& f) {
  const std::string& op = f.info.base_name;
  return op == "view"
             ? f.argument("dtype") == nullptr
             : op == "_unsafe_view" || op == "_reshape_alias" || op == "squeeze" || op == "expand";
}

void localise_sizes(const Frame& f, Decision& d, const Shape& out) {
  const auto here = hosted_coordinates(f.lead->world(), f.mesh());
  const bool expands = f.info.base_name == "expand";
  std::vector<Shape> sizes;
  for (const Coordinate& at : here) {
    sizes.push_back(local_shape(d.results[0].specs[0]->layout, out, at));
  }
  const bool empties = std::any_of(sizes.begin(), sizes.end(), [](const Shape& s) {
    return c10::multiply_integers(to_ref(s)) == 0;
  });
  if (!expands || !empties) {
    // The op is told the sizes of the piece; those that say sizes otherwise are done by `view`.
    const std::string& op = f.info.base_name;
    for (const Shape& s : sizes) d.local.arguments.push_back({{1, to_ref(s).vec()}});
    if (op == "_reshape_alias" || op == "squeeze") {
      d.local.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::view", "");
    }
    return;
  }
  d.local.call = [sizes](std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor self = stack[0].toTensor();
    const at::IntArrayRef wanted = to_ref(sizes[m]);
    // Pieces without elements cannot be expanded.
    at::Tensor out = c10::multiply_integers(wanted) == 0 ? at::empty(wanted, self.options())
                                                         : self.expand(wanted);
    stack.clear();
    stack.emplace_back(std::move(out));
  };
}

/// as_strided counts from the beginning of the storage, where a piece need not begin.
void localise_as_strided(const Frame& f, Decision& d) {
  if (strides_alone_differ(f, *d.in[0])) {
    d.local.op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::alias", "");
    return;
  }
  const std::int64_t offset = d.in[0]->offset;
  const Shape strides = d.in[0]->strides;
  const std::string name = f.info.name;
  d.local.call = [offset, strides, name](std::size_t, torch::jit::Stack& stack) {
    const at::Tensor self = stack[0].toTensor();
    bool alike = true;
    for (std::size_t k = 0; k < strides.size(); ++k) {
      const auto dim = static_cast<std::int64_t>(k);
      alike &= self.size(dim) == 1 || self.stride(dim) == strides[k];
    }
    if (!alike) {
      fail<UnsupportedError>(name, "the pieces do not have the strides (", join(strides),
                             ") of the full tensor; use view, select or slice");
    }
    const auto size = stack[1].toIntVector();
    const auto stride = stack[2].toIntVector();
    const std::int64_t start = stack[3].isNone() ? offset : stack[3].toInt();
    at::Tensor out = self.as_strided(size, stride, start - offset + self.storage_offset());
    stack.clear();
    stack.emplace_back(std::move(out));
  };
}

}  // namespace

void decide_view(const Frame& f, Decision& d) {
  const SpecData& spec = *d.in[0];
  const std::vector<at::Tensor> tried = try_view(f, spec);
  const Shape first = tried.empty() ? spec.sizes : to_shape(tried[0].sizes());
  const auto parts = block_parts(f, spec, tried);
  const ViewLayouts layouts =
      parts ? ViewLayouts{spec.layout, spec.layout} : layouts_of(f, spec, first);
  d.layouts.assign(f.tensors.size(), layouts.from);
  const std::vector<Layout> by_part =
      parts ? split_into_parts(f, spec, *parts, d) : std::vector<Layout>(tried.size(), layouts.to);
  const bool list = f.info.op.schema().returns()[0].type()->kind() == c10::TypeKind::ListType;
  Result result{list ? Result::Kind::list : Result::Kind::tensor, {}, 0};
  for (std::size_t i = 0; i < tried.size(); ++i) {
    const at::Tensor& t = tried[i];
    result.specs.emplace_back(by_part[i], to_shape(t.sizes()), to_shape(t.strides()),
                              t.storage_offset(), t.scalar_type());
  }
  d.results.push_back(std::move(result));
  d.out_layouts = {by_part.empty() ? layouts.to : by_part[0]};
  if (takes_sizes(f)) localise_sizes(f, d, first);
  if (f.info.base_name == "as_strided") localise_as_strided(f, d);
  if (f.info.base_name == "view_as_real") {
    // Pieces may be lazily conjugated, which the distributed tensor does not show.
    d.local.call = [](std::size_t, torch::jit::Stack& stack) {
      stack[0] = at::view_as_real(stack[0].toTensor().resolve_conj());
    };
  }
}

}  // namespace intarsia
