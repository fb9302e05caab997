#include "tensor/autograd.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "tensor/decide.h"
#include "tensor/dispatch.h"
#include "tensor/state.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

DistributedImpl& ours(std::string_view where, const at::Tensor& t) {
  if (!is_ours(t)) {
    fail<ValueError>(where, "takes a distributed tensor, not ",
                     t.defined() ? describe(t) : std::string("an undefined one"),
                     "; distribute() makes one");
  }
  return impl_of(t);
}

void check_mesh(std::string_view where, const Layout& layout, const Mesh& mesh) {
  if (layout.mesh() != mesh) {
    fail<ValueError>(where, "the tensor lies on ", mesh, ", not on ", layout.mesh(),
                     "; moving between meshes is not built yet");
  }
}

Plan plan_between(std::string_view where, const Layout& from, const Layout& to) {
  auto plan = make_plan(from, to);
  if (!plan) {
    fail<ValueError>(where, "no exact way leads from ", from, " to ", to,
                     ": partial values of different kinds; go through R");
  }
  return *plan;
}

/// Below autograd: the same values in another layout.
at::Tensor moved(const at::Tensor& t, const Layout& layout, const Reason& reason) {
  DistributedImpl& impl = impl_of(t);
  const Spec spec = impl.spec();
  const BelowAutograd below;
  if (spec->layout == layout) return make_tensor(impl, spec, impl.pieces());
  const Plan plan = plan_between(reason.op, spec->layout, layout);
  return make_tensor(impl, spec.with(layout), impl.state().move(spec, impl.pieces(), plan, reason));
}

/// A gradient in the layout that is asked for; a plain one counts as replicated.
at::Tensor gradient_in(const at::Tensor& grad, const Layout& layout, World& world) {
  if (!grad.defined()) return grad;
  if (is_ours(grad)) {
    return impl_of(grad).spec()->layout == layout ? grad : redistribute(grad, layout);
  }
  return distribute(grad, layout, world);
}

/// What the functions below take, and what travels to their backward.
struct Where : torch::CustomClassHolder {
  Where(const Spec& spec, const Layout& grad_layout, std::shared_ptr<World> world)
      : spec(spec), grad_layout(grad_layout), world(std::move(world)) {}
  Spec spec;           ///< of the distributed tensor
  Layout grad_layout;  ///< of the gradient that backward gives
  std::shared_ptr<World> world;
};
using WherePtr = c10::intrusive_ptr<Where>;

void keep(AutogradContext* ctx, const WherePtr& where) {
  ctx->saved_data["where"] = c10::IValue::make_capsule(where);
}
WherePtr kept(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Where>(ctx->saved_data["where"].toCapsule());
}

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, const WherePtr& where) {
    keep(ctx, where);
    return moved(t, where->spec->layout, {.op = "redistribute", .implicit = false});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor& g = grads[0];
    if (!g.defined() || !is_ours(g)) return {g, at::Tensor()};
    const WherePtr w = kept(ctx);
    return {gradient_in(g, w->grad_layout, *w->world), at::Tensor()};
  }
};

struct Local : torch::autograd::Function<Local> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, const WherePtr& where) {
    keep(ctx, where);
    const BelowAutograd below;
    impl_of(t).expose();
    return at::alias(impl_of(t).pieces()[0]);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    const WherePtr w = kept(ctx);
    return {from_local(grads[0].contiguous(), w->grad_layout, *w->world,
                       {.shape = to_ref(w->spec->sizes).vec()}),
            at::Tensor()};
  }
};

struct FromLocal : torch::autograd::Function<FromLocal> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& piece, const WherePtr& where) {
    keep(ctx, where);
    const BelowAutograd below;
    Pieces pieces;
    pieces.push_back(in_order(at::alias(piece), *where->spec));
    at::Tensor out =
        make_tensor(where->world, TensorState::of(*where->world), where->spec, std::move(pieces));
    impl_of(out).expose();
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    const WherePtr w = kept(ctx);
    const at::Tensor g = gradient_in(grads[0], w->grad_layout, *w->world);
    // Every axis of it is known: no layout is guessed.
    return {local(g, w->grad_layout), at::Tensor()};
  }
};

struct Distribute : torch::autograd::Function<Distribute> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& whole, const WherePtr& where) {
    const BelowAutograd below;
    Pieces pieces;
    for (const Coordinate& at : hosted_coordinates(*where->world, where->spec->layout.mesh())) {
      const at::Tensor piece = cut_piece(whole, where->spec->layout, at);
      // Its own memory: a piece must neither keep the whole alive nor be written with it.
      pieces.push_back(in_order(piece.is_alias_of(whole) ? piece.clone() : piece, *where->spec));
    }
    return make_tensor(where->world, TensorState::of(*where->world), where->spec,
                       std::move(pieces));
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    const at::Tensor& g = grads[0];
    if (!g.defined() || !is_ours(g)) return {g, at::Tensor()};
    return {full(g), at::Tensor()};
  }
};

void check_dtype(std::string_view where, const at::Tensor& t, const Layout& layout) {
  if (t.layout() != at::kStrided) {
    fail<ValueError>(where, "takes a dense tensor, not a sparse or otherwise unstrided one");
  }
  check_partial(where, t.scalar_type(), layout);
}

/// The global sizes that even cuts give.
Shape even_sizes(const at::Tensor& piece, const Layout& layout) {
  check_dims("from_local", layout, static_cast<std::size_t>(piece.dim()));
  Shape sizes = to_shape(piece.sizes());
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (p.is_shard()) sizes[static_cast<std::size_t>(p.dim())] *= layout.mesh().size(a);
  }
  return sizes;
}

}  // namespace

void attach_leaf_hook(const at::Tensor& tensor) {
  DistributedImpl& impl = impl_of(tensor);
  // Without grad mode nothing becomes part of a graph, and views made there look like leaves.
  if (impl.hooked || !at::GradMode::is_enabled()) return;
  if (!tensor.requires_grad() || !tensor.is_leaf()) return;
  impl.hooked = true;
  // The leaf outlives its hook, and may be laid out anew: so ask it each time.
  tensor.register_hook([leaf = &impl](const at::Tensor& grad) -> at::Tensor {
    const Layout layout = without_partial(leaf->spec()->layout);
    if (!grad.defined() || (is_ours(grad) && impl_of(grad).spec()->layout == layout)) return grad;
    if (!is_ours(grad)) return distribute(grad, layout, leaf->world());
    if (!grad.requires_grad()) return moved(grad, layout, {.op = "gradient", .implicit = false});
    return redistribute(grad, layout);
  });
}

bool has_layout(const at::Tensor& tensor) { return is_ours(tensor); }

Layout layout_of(const at::Tensor& tensor) { return ours("layout_of", tensor).spec()->layout; }
World& world_of(const at::Tensor& tensor) { return ours("world_of", tensor).world(); }

std::string describe(const at::Tensor& t) {
  if (!t.defined()) return "undefined";
  if (is_ours(t)) {
    const Spec& spec = impl_of(t).spec();
    return concat(spec, " on ", spec->layout.mesh());
  }
  return concat(dtype_text(t.scalar_type()), '[', join(t.sizes(), ", "), "] plain");
}

std::string show(const at::Tensor& t) {
  std::ostringstream out;
  out << describe(t);
  if (!is_ours(t)) {
    out << '\n' << t;
    return out.str();
  }
  DistributedImpl& impl = impl_of(t);
  std::size_t m = 0;
  for (const std::int64_t rank : impl.world().hosted()) {
    const auto at = impl.spec()->layout.mesh().coordinate_of(rank);
    if (!at) continue;
    out << "\nrank " << rank << " holds "
        << boxes(impl.spec()->layout, impl.spec()->sizes, *at).to_string() << '\n'
        << impl.pieces()[m++];
  }
  return out.str();
}

at::Tensor redistribute(const at::Tensor& tensor, const Layout& layout) {
  DistributedImpl& impl = ours("redistribute", tensor);
  const Spec spec = impl.spec();
  check_mesh("redistribute", layout, spec->layout.mesh());
  check_dims("redistribute", layout, spec->sizes.size());
  if (spec->layout == layout) return tensor;
  check_dtype("redistribute", tensor, layout);
  attach_leaf_hook(tensor);
  return Redistribute::apply(
      tensor, c10::make_intrusive<Where>(spec.with(layout), without_partial(spec->layout),
                                         impl.shared_world()));
}

at::Tensor distribute(const at::Tensor& whole, const Layout& layout, World& world) {
  register_kernels();
  if (is_ours(whole)) {
    fail<ValueError>("distribute", "the tensor is distributed already, as ", describe(whole),
                     "; redistribute() changes its layout");
  }
  check_dims("distribute", layout, static_cast<std::size_t>(whole.dim()));
  check_dtype("distribute", whole, layout);
  const Shape sizes = to_shape(whole.sizes());
  const Shape strides = whole.is_contiguous()
                            ? contiguous_strides(sizes)
                            : strides_in_order_of(sizes, to_shape(whole.strides()));
  const Spec spec(layout, sizes, strides, 0, whole.scalar_type());
  return Distribute::apply(whole,
                           c10::make_intrusive<Where>(spec, layout, world.shared_from_this()));
}

at::Tensor from_local(const at::Tensor& piece, const Layout& layout, World& world,
                      const FromLocalOptions& options) {
  register_kernels();
  constexpr std::string_view name = "from_local";
  if (is_ours(piece)) fail<ValueError>(name, "takes a plain tensor, not ", describe(piece));
  check_dtype(name, piece, layout);
  const auto here = hosted_coordinates(world, layout.mesh());
  if (here.size() != 1) {
    fail<ValueError>(name, "this process hosts ", here.size(), " ranks of ", layout.mesh(),
                     "; it takes the piece of one");
  }
  const Shape sizes = options.shape ? to_shape(*options.shape) : even_sizes(piece, layout);
  check_shape(name, sizes);
  check_dims(name, layout, sizes.size());
  const Shape expected = local_shape(layout, sizes, here[0]);
  if (piece.sizes() != to_ref(expected)) {
    fail<ValueError>(name, "the piece of rank ", world.rank(), " has sizes (", join(piece.sizes()),
                     "), but ", layout, " gives it (", join(expected), ") of (", join(sizes),
                     "); say the global sizes in `shape`");
  }
  const Layout grad_layout = options.grad_layout.value_or(without_partial(layout));
  if (grad_layout.mesh() != layout.mesh()) {
    fail<ValueError>(name, "grad_layout ", grad_layout, " is on another mesh than ", layout);
  }
  Shape strides = contiguous_strides(sizes);
  if (options.strides) {
    strides = to_shape(*options.strides);
    if (strides.size() != sizes.size() || strides != strides_in_order_of(sizes, strides)) {
      fail<ValueError>(name, "strides (", join(strides), ") are not those of a dense tensor of (",
                       join(sizes), ")");
    }
  }
  const Spec spec(layout, sizes, strides, 0, piece.scalar_type());
  if (!in_order(piece, *spec).is_same(piece) || !piece.is_non_overlapping_and_dense()) {
    fail<ValueError>(
        name, "the piece has strides (", join(piece.strides()), ") for sizes (",
        join(piece.sizes()), "), where a piece of strides (", join(strides),
        ") is needed; pass contiguous(), or say the strides of the whole in `strides`");
  }
  return FromLocal::apply(piece,
                          c10::make_intrusive<Where>(spec, grad_layout, world.shared_from_this()));
}

at::Tensor local(const at::Tensor& tensor, const std::optional<Layout>& grad_layout) {
  DistributedImpl& impl = ours("local", tensor);
  const Spec spec = impl.spec();
  if (impl.pieces().size() != 1) {
    fail<ValueError>("local", "this process holds ", impl.pieces().size(), " pieces of ",
                     describe(tensor), "; local() gives the one of one rank");
  }
  if (grad_layout) check_mesh("local", *grad_layout, spec->layout.mesh());
  if (!grad_layout && tensor.requires_grad() && at::GradMode::is_enabled()) {
    for (std::size_t a = 0; a < spec->layout.mesh().axes(); ++a) {
      const Placement& p = spec->layout.placement(a);
      if (p.is_shard() || spec->layout.mesh().size(a) == 1) continue;
      fail<ValueError>(
          "local", describe(tensor), " requires a gradient and is ", p, " on axis ",
          spec->layout.mesh().name(a),
          ": whether each rank's gradient is the whole or a part of it depends on what is done "
          "with the piece; pass grad_layout with R (every rank computes the same) or P(sum) (each "
          "computes its part) there");
    }
  }
  attach_leaf_hook(tensor);
  return Local::apply(tensor, c10::make_intrusive<Where>(spec, grad_layout.value_or(spec->layout),
                                                         impl.shared_world()));
}

at::Tensor full(const at::Tensor& tensor, const std::optional<Layout>& grad_layout) {
  DistributedImpl& impl = ours("full", tensor);
  const Layout whole = Layout::replicated(impl.spec()->layout.mesh());
  return local(redistribute(tensor, whole), grad_layout.value_or(whole));
}

std::vector<at::Tensor> local_region(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& body,
    const std::vector<at::Tensor>& inputs, const RegionLayouts& region) {
  constexpr std::string_view name = "local_region";
  if (inputs.empty() || region.in.size() != inputs.size()) {
    fail<ValueError>(name, inputs.size(), " inputs and ", region.in.size(),
                     " layouts for them; give one each");
  }
  World& world = ours(name, inputs[0]).world();
  std::vector<at::Tensor> pieces;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto grad = i < region.grads.size() ? region.grads[i] : std::nullopt;
    const at::Tensor moved_input = is_ours(inputs[i]) ? redistribute(inputs[i], region.in[i])
                                                      : distribute(inputs[i], region.in[i], world);
    pieces.push_back(local(moved_input, grad));
  }
  const std::vector<at::Tensor> results = body(pieces);
  if (results.size() != region.out.size()) {
    fail<ValueError>(name, "the body returned ", results.size(), " tensors where `out` has ",
                     region.out.size(), " layouts");
  }
  std::vector<at::Tensor> out;
  for (std::size_t i = 0; i < results.size(); ++i) {
    FromLocalOptions options;
    if (i < region.shapes.size()) options.shape = region.shapes[i];
    out.push_back(from_local(results[i].contiguous(), region.out[i], world, options));
  }
  return out;
}

}  // namespace intarsia
