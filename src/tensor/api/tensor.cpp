#include "intarsia/tensor.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "tensor/core/ours.h"
#include "tensor/dispatch/dispatch.h"
#include "tensor/dispatch/leaf_hook.h"
#include "tensor/local/without_values.h"
#include "tensor/move/agreement.h"
#include "tensor/move/relayout.h"
#include "tensor/move/state.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Of a tensor whose values are asked for.
void check_not_stale(std::string_view where, const at::Tensor& t) {
  if (impl_of(t).is_stale()) fail<ValueError>(where, kStale, ": ", describe(t), "; ", kStaleWayOut);
}

/// A gradient in the layout that is asked for; a plain one counts as replicated.
at::Tensor gradient_in(const at::Tensor& grad, const Layout& layout, World& world) {
  if (!grad.defined()) return grad;
  if (is_ours(grad)) {
    return impl_of(grad).spec()->layout == layout ? grad : redistribute(grad, layout);
  }
  return distribute(grad, layout, world);
}

/// from_locals of pieces that stay on the devices that they are on.
at::Tensor made_of(const std::vector<at::Tensor>& pieces, const Layout& layout, World& world,
                   const FromLocalOptions& options);

/// What the functions below take, and what travels to their backward.
struct Origin : torch::CustomClassHolder {
  Origin(const Spec& spec, const Layout& grad_layout, std::shared_ptr<World> world)
      : spec(spec), grad_layout(grad_layout), world(std::move(world)) {}
  Spec spec;           ///< of the distributed tensor
  Layout grad_layout;  ///< of the gradient that backward gives
  std::shared_ptr<World> world;
  bool one_for_all = false;      ///< one piece stands for those of all hosted ranks
  at::Device device = at::kCPU;  ///< where the plain tensor was, and its gradient goes
};
using WherePtr = c10::intrusive_ptr<Origin>;

/// A plain tensor of another device goes to the world's. In simulated worlds nothing is moved.
at::Tensor on_device_of(const World& world, const at::Tensor& plain) {
  const bool stays = world.simulated() || plain.is_meta() || plain.device() == world.device();
  return stays ? plain : plain.to(world.device());
}

/// What travels to backward. Gradients that nobody asked for stay undefined: autograd's zeros would
/// be plain tensors.
void keep(AutogradContext* ctx, const WherePtr& where) {
  ctx->set_materialize_grads(false);
  ctx->saved_data["where"] = c10::IValue::make_capsule(where);
}
WherePtr kept(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Origin>(ctx->saved_data["where"].toCapsule());
}

/// Compares the full tensor that this rank was given with those of the others.
void check_full(World& world, const Layout& layout, const at::Tensor& tensor) {
  if (!world.guarded() || tensor.is_meta()) return;
  const std::string_view module = module_path();
  world.check_value(
      layout.mesh(),
      concat("the tensor given to distribute", module.empty() ? "" : " for ", module),
      content_hash(tensor),
      concat(
          "here it is ", describe(tensor),
          ". distribute takes the full tensor, the same on all ranks: seed before it is made "
          "(torch.manual_seed), or give all ranks the first one's (from_first(module)); where each "
          "rank has a part of its own, pass it to from_local"));
}

/// Compares the sizes that this rank concludes from its piece with those of the others.
void check_concluded(World& world, std::string_view name, const Spec& spec) {
  if (!world.guarded()) return;
  const std::string text = spec.to_string();
  world.check_value(spec->layout.mesh(), concat("what ", name, " makes of a piece"),
                    hash_text(text),
                    concat("here it is ", text,
                           ". Without `shape` each rank takes all pieces to be as large as its "
                           "own: say the global sizes, from_local(piece, layout, shape=(...)), or "
                           "drop the last batch"));
}

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, const WherePtr& where) {
    keep(ctx, where);
    return relaid(t, where->spec->layout, {.op = "redistribute", .implicit = false});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor& g = grads[0];
    if (!g.defined() || !is_ours(g)) return {g, at::Tensor()};
    const WherePtr w = kept(ctx);
    return {gradient_in(g, w->grad_layout, *w->world), at::Tensor()};
  }
};

struct Locals : torch::autograd::Function<Locals> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& t, const WherePtr& where) {
    keep(ctx, where);
    const BelowAutograd below;
    impl_of(t).expose();
    variable_list out;
    const Pieces& pieces = impl_of(t).pieces();
    for (const at::Tensor& piece : pieces) {
      // One tensor for several ranks cannot share the memory of all of them.
      const bool copied = where->one_for_all && pieces.size() > 1;
      out.push_back(copied ? piece.clone() : at::alias(piece));
      if (where->one_for_all) break;
    }
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (std::none_of(grads.begin(), grads.end(), [](const auto& g) { return g.defined(); })) {
      return {at::Tensor(), at::Tensor()};
    }
    const WherePtr w = kept(ctx);
    const auto here = hosted_coordinates(*w->world, w->grad_layout.mesh());
    variable_list pieces;
    for (std::size_t m = 0; m < here.size(); ++m) {
      const at::Tensor& g = grads[w->one_for_all ? 0 : m];
      if (!g.defined()) {
        const Shape sizes = local_shape(w->grad_layout, w->spec->sizes, here[m]);
        pieces.push_back(at::zeros(
            to_ref(sizes), at::TensorOptions(w->world->piece_device()).dtype(w->spec->dtype)));
      } else {
        pieces.push_back(w->one_for_all && m > 0 ? g.clone() : g.contiguous());
      }
    }
    return {made_of(pieces, w->grad_layout, *w->world, {.shape = to_ref(w->spec->sizes).vec()}),
            at::Tensor()};
  }
};

struct FromLocals : torch::autograd::Function<FromLocals> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList list, const WherePtr& where) {
    keep(ctx, where);
    const BelowAutograd below;
    Pieces pieces;
    const bool simulated = where->world->simulated();
    for (const at::Tensor& p : list) {
      // What shares its memory holds it, when the caller has dropped the tensor.
      const at::Tensor piece = simulated && !p.is_meta() ? p.to(at::kMeta) : at::alias(p);
      pieces.push_back(in_order(piece, *where->spec));
    }
    at::Tensor out =
        make_tensor(where->world, TensorState::of(*where->world), where->spec, std::move(pieces));
    impl_of(out).expose();
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const WherePtr w = kept(ctx);
    variable_list out(hosted_coordinates(*w->world, w->grad_layout.mesh()).size());
    if (grads[0].defined()) {
      // Every axis of it is known: no layout is guessed.
      out = locals(gradient_in(grads[0], w->grad_layout, *w->world), w->grad_layout);
    }
    out.emplace_back();
    return out;
  }
};

struct Distribute : torch::autograd::Function<Distribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const WherePtr& where) {
    keep(ctx, where);
    const BelowAutograd below;
    // Autograd's zero tensors have no memory.
    const at::Tensor real = where->world->simulated() ? stand_in(tensor)
                            : tensor._is_zerotensor() ? at::zeros(tensor.sizes(), tensor.options())
                                                      : tensor;
    check_full(*where->world, where->spec->layout, tensor);
    Pieces pieces;
    for (const Coordinate& at : hosted_coordinates(*where->world, where->spec->layout.mesh())) {
      const at::Tensor piece =
          on_device_of(*where->world, local_piece(real, where->spec->layout, at));
      // Its own memory: a piece must neither keep the full tensor alive nor be written with it.
      pieces.push_back(in_order(piece.is_alias_of(real) ? piece.clone() : piece, *where->spec));
    }
    return make_tensor(where->world, TensorState::of(*where->world), where->spec,
                       std::move(pieces));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor& g = grads[0];
    if (!g.defined() || !is_ours(g)) return {g, at::Tensor()};
    const WherePtr w = kept(ctx);
    const at::Tensor gradient = full(g);
    return {w->world->simulated() ? gradient : gradient.to(w->device), at::Tensor()};
  }
};

void check_dtype(std::string_view where, const at::Tensor& t, const Layout& layout) {
  if (t.layout() != at::kStrided) {
    fail<ValueError>(where, "takes a dense tensor, not a sparse or otherwise unstrided one");
  }
  check_partial(where, t.scalar_type(), layout);
}

/// Whether a tensor with these strides has neither gaps nor elements in common.
bool are_dense(const Shape& sizes, const Shape& strides) {
  const Shape dense = dense_strides(sizes, strides);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] != dense[d]) return false;
  }
  return true;
}

/// The global sizes, where all pieces have the sizes of this one.
Shape even_sizes(std::string_view where, const at::Tensor& piece, const Layout& layout) {
  check_dims(where, layout, static_cast<std::size_t>(piece.dim()));
  Shape sizes = to_shape(piece.sizes());
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (p.is_shard()) sizes[static_cast<std::size_t>(p.dim())] *= layout.mesh().size(a);
  }
  return sizes;
}

}  // namespace

at::Tensor redistribute(const at::Tensor& tensor, const Layout& layout) {
  DistributedImpl& impl = ours("redistribute", tensor);
  const Spec spec = impl.spec();
  check_mesh("redistribute", layout, spec->layout.mesh());
  check_dims("redistribute", layout, spec->sizes.size());
  if (spec->layout == layout) return tensor;
  check_not_stale("redistribute", tensor);
  check_dtype("redistribute", tensor, layout);
  attach_leaf_hook(tensor);
  return Redistribute::apply(
      tensor, c10::make_intrusive<Origin>(spec.with(layout), without_partial(spec->layout),
                                          impl.shared_world()));
}

at::Tensor distribute(const at::Tensor& full, const Layout& layout, World& world) {
  register_kernels();
  if (is_ours(full)) {
    fail<ValueError>("distribute", "the tensor is distributed already, as ", describe(full),
                     "; redistribute() changes its layout");
  }
  check_dims("distribute", layout, static_cast<std::size_t>(full.dim()));
  check_dtype("distribute", full, layout);
  const Spec spec = spec_of(full, layout);
  if (spec->norms) {
    fail<ValueError>(
        "distribute", "a full tensor cannot be laid out as ", layout,
        ": values with a sign are no norm; use R, or from_local() for partial values of a norm");
  }
  const auto origin = c10::make_intrusive<Origin>(spec, layout, world.shared_from_this());
  origin->device = full.device();
  return Distribute::apply(full, origin);
}

at::Tensor from_local(const at::Tensor& piece, const Layout& layout, World& world,
                      const FromLocalOptions& options) {
  const std::size_t here = hosted_coordinates(world, layout.mesh()).size();
  if (here != 1) {
    fail<ValueError>("from_local", "this process hosts ", here, " ranks of ", layout.mesh(),
                     ", and from_local takes the piece of one; from_locals takes those of all");
  }
  return from_locals({piece}, layout, world, options);
}

at::Tensor from_locals(const std::vector<at::Tensor>& pieces, const Layout& layout, World& world,
                       const FromLocalOptions& options) {
  std::vector<at::Tensor> here;
  for (const at::Tensor& piece : pieces) {
    here.push_back(is_ours(piece) ? piece : on_device_of(world, piece));
  }
  return made_of(here, layout, world, options);
}

namespace {

at::Tensor made_of(const std::vector<at::Tensor>& pieces, const Layout& layout, World& world,
                   const FromLocalOptions& options) {
  register_kernels();
  const std::string_view name = world.in_lockstep() ? "from_locals" : "from_local";
  const auto here = hosted_coordinates(world, layout.mesh());
  if (pieces.size() != here.size()) {
    fail<ValueError>(name, "this process hosts ", here.size(), " ranks of ", layout.mesh(),
                     ", but ", pieces.size(), " pieces were given");
  }
  if (pieces.empty() && (!options.shape || !options.dtype)) {
    fail<ValueError>(name, "this process hosts no rank of ", layout.mesh(),
                     "; say the global sizes in `shape` and the dtype in `dtype`");
  }
  const at::ScalarType dtype = pieces.empty() ? *options.dtype : pieces[0].scalar_type();
  const Shape sizes =
      options.shape ? to_shape(*options.shape) : even_sizes(name, pieces[0], layout);
  check_shape(name, sizes);
  check_dims(name, layout, sizes.size());
  const Layout grad_layout = options.grad_layout.value_or(without_partial(layout));
  if (grad_layout.mesh() != layout.mesh()) {
    fail<ValueError>(name, "grad_layout ", grad_layout, " is on another mesh than ", layout);
  }
  Shape strides = contiguous_strides(sizes);
  if (options.strides) {
    strides = to_shape(*options.strides);
    if (strides.size() != sizes.size() || !are_dense(sizes, strides)) {
      fail<ValueError>(name, "strides (", join(strides), ") are not those of a dense tensor of (",
                       join(sizes), ")");
    }
  }
  const Spec spec(layout, sizes, strides, 0, dtype);
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const at::Tensor& piece = pieces[m];
    if (is_ours(piece)) fail<ValueError>(name, "takes plain tensors, not ", describe(piece));
    check_dtype(name, piece, layout);
    const Shape expected = local_shape(layout, sizes, here[m]);
    const std::int64_t rank = layout.mesh().rank_at(here[m]);
    if (piece.scalar_type() != dtype) {
      fail<ValueError>(name, "the piece of rank ", rank, " is ", dtype_text(piece.scalar_type()),
                       ", but others are ", dtype_text(dtype));
    }
    if (piece.sizes() != to_ref(expected)) {
      fail<ValueError>(name, "the piece of rank ", rank, " has sizes (", join(piece.sizes()),
                       "), but ", layout, " gives it (", join(expected), ") of (", join(sizes), ")",
                       options.shape ? "; boxes() says how a layout shards this shape"
                                     : "; say the global sizes in `shape`");
    }
    if (!in_order(piece, *spec).is_same(piece) || !piece.is_non_overlapping_and_dense()) {
      fail<ValueError>(
          name, "the piece has strides (", join(piece.strides()), ") for sizes (",
          join(piece.sizes()), "), where a piece of strides (", join(strides),
          ") is needed; pass contiguous(), or say the strides of the full tensor in `strides`");
    }
  }
  if (!options.shape) check_concluded(world, name, spec);
  return FromLocals::apply(
      at::TensorList(pieces),
      c10::make_intrusive<Origin>(spec, grad_layout, world.shared_from_this()));
}

/// The layout of the gradient of pieces, which must be said where they are not sharded.
Layout checked_grad_layout(std::string_view where, const at::Tensor& tensor,
                           const std::optional<Layout>& grad_layout,
                           std::string_view argument = "grad_layout") {
  const Layout& layout = impl_of(tensor).spec()->layout;
  if (grad_layout) check_mesh(where, *grad_layout, layout.mesh());
  if (grad_layout || !tensor.requires_grad() || !at::GradMode::is_enabled()) {
    return grad_layout.value_or(layout);
  }
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (p.is_shard() || layout.mesh().size(a) == 1) continue;
    fail<ValueError>(
        where, describe(tensor), " requires a gradient and is ", p, " on axis ",
        layout.mesh().name(a),
        ": whether each rank's gradient is the full gradient or a part of it depends on what is "
        "done with the piece; pass ",
        argument,
        " with R (every rank computes the same) or P(sum) (each computes its part) there");
  }
  return layout;
}

std::vector<at::Tensor> pieces_of(const at::Tensor& tensor, const Layout& grad_layout,
                                  bool one_for_all) {
  DistributedImpl& impl = impl_of(tensor);
  check_not_stale("local", tensor);
  attach_leaf_hook(tensor);
  auto where = c10::make_intrusive<Origin>(impl.spec(), grad_layout, impl.shared_world());
  where->one_for_all = one_for_all;
  return Locals::apply(tensor, where);
}

}  // namespace

at::Tensor local(const at::Tensor& tensor, const std::optional<Layout>& grad_layout) {
  const std::size_t n = ours("local", tensor).pieces().size();
  if (n != 1) {
    fail<ValueError>("local", "this process holds ", n, " pieces of ", describe(tensor),
                     ", and local() gives the one of one rank; locals() gives them all, and "
                     "local_region() runs code on each");
  }
  return pieces_of(tensor, checked_grad_layout("local", tensor, grad_layout), false)[0];
}

std::vector<at::Tensor> locals(const at::Tensor& tensor, const std::optional<Layout>& grad_layout) {
  if (ours("locals", tensor).pieces().empty()) return {};
  return pieces_of(tensor, checked_grad_layout("locals", tensor, grad_layout), false);
}

at::Tensor full(const at::Tensor& tensor, const std::optional<Layout>& grad_layout) {
  DistributedImpl& impl = ours("full", tensor);
  const Layout replicated = Layout::replicated(impl.spec()->layout.mesh());
  if (grad_layout) check_mesh("full", *grad_layout, replicated.mesh());
  const at::Tensor everywhere = redistribute(tensor, replicated);
  if (impl_of(everywhere).pieces().empty()) {
    fail<ValueError>("full", "this process hosts no rank of ", replicated.mesh(),
                     " and holds no piece of ", describe(tensor), "; call it on ranks of the mesh");
  }
  impl.world().check_trouble(replicated.mesh());
  return pieces_of(everywhere, grad_layout.value_or(replicated), true)[0];
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
  std::vector<std::vector<at::Tensor>> pieces(inputs.size());  // by input, then by hosted rank
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto grad = i < region.grads.size() ? region.grads[i] : std::nullopt;
    const at::Tensor moved_input = is_ours(inputs[i]) ? redistribute(inputs[i], region.in[i])
                                                      : distribute(inputs[i], region.in[i], world);
    pieces[i] =
        pieces_of(moved_input, checked_grad_layout(name, moved_input, grad, "grads"), false);
  }
  std::vector<std::vector<at::Tensor>> results(region.out.size());
  for (std::size_t m = 0; m < pieces[0].size(); ++m) {
    std::vector<at::Tensor> mine;
    for (const auto& list : pieces) mine.push_back(list[m]);
    const c10::impl::ExcludeDispatchKeyGuard counted{c10::DispatchKeySet(kPieces)};
    const std::vector<at::Tensor> made = body(mine);
    if (made.size() != region.out.size()) {
      fail<ValueError>(name, "the body returned ", made.size(), " tensors where `out` has ",
                       region.out.size(), " layouts");
    }
    for (std::size_t i = 0; i < made.size(); ++i) results[i].push_back(made[i].contiguous());
  }
  std::vector<at::Tensor> out;
  for (std::size_t i = 0; i < results.size(); ++i) {
    FromLocalOptions options;
    if (i < region.shapes.size()) options.shape = region.shapes[i];
    options.dtype = inputs[0].scalar_type();
    out.push_back(made_of(results[i], region.out[i], world, options));
  }
  return out;
}

}  // namespace intarsia
