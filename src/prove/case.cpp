#include "prove/case.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "tensor/call/op_info.h"
#include "tensor/core/arguments.h"
#include "tensor/core/impl.h"
#include "tensor/dispatch/dispatch.h"
#include "tensor/move/state.h"
#include "world/collectives/wire.h"
#include "world/transport/dtype.h"
#include "world/transport/error_text.h"
#include "world/transport/reductions.h"

namespace intarsia {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

constexpr std::string_view kWith = " with ";
constexpr std::string_view kOn = " on ";
constexpr std::string_view kInPlace = " in place";
constexpr std::string_view kOut = " into out=";

// ---- values ----------------------------------------------------------------------------------

at::Tensor noise(const at::Tensor& like, std::uint64_t seed) {
  at::Generator g = at::detail::createCPUGenerator(seed);
  if (like.is_complex() || like.is_floating_point()) {
    // Multiples of 1/8, so that terms of round values add up to them exactly.
    return at::randint(-24, 25, like.sizes(), g, at::TensorOptions(at::kDouble))
        .div(8)
        .to(like.scalar_type());
  }
  if (like.scalar_type() == at::kBool) return at::rand(like.sizes(), g, {}).gt(0.5);
  return at::randint(-3, 4, like.sizes(), g, at::TensorOptions(at::kLong)).to(like.scalar_type());
}

/// n tensors that differ and combine to `whole`.
Tensors terms_of(const at::Tensor& whole, const Placement& how, std::int64_t n,
                 std::uint64_t seed) {
  Tensors terms;
  const auto random = [&](std::int64_t i) {
    return noise(whole, hash_mix(seed, static_cast<std::uint64_t>(i) + 1));
  };
  // For each element one rank, drawn by lot, that alone has the value.
  at::Generator g = at::detail::createCPUGenerator(hash_mix(seed, 99));
  const at::Tensor owner = at::randint(n, whole.sizes(), g, at::TensorOptions(at::kLong));
  // Of truth values, sums and maxima are "or", products and minima "and".
  Reduction kind = how.reduction();
  if (whole.scalar_type() == at::kBool) {
    const bool any = kind == Reduction::sum || kind == Reduction::max || kind == Reduction::bit_or;
    kind = any ? Reduction::bit_or : Reduction::bit_and;
  }
  switch (kind) {
    case Reduction::sum:
    case Reduction::avg: {
      // An average of n terms n times as large, also where it is taken axis by axis.
      const std::int64_t scale = kind == Reduction::avg ? n : 1;
      at::Tensor rest = whole * scale;
      // Halves have no bits for noise; twice the value, less the value, is exact in any order.
      const bool halves = whole.is_floating_point() && whole.element_size() <= 2;
      for (std::int64_t i = 0; i + 1 < n; ++i) {
        terms.push_back(halves ? rest * (i == 0 ? 2 : 0) : random(i) * scale);
        if (!halves || i == 0) rest = rest - terms.back();
      }
      terms.push_back(rest);
      break;
    }
    case Reduction::min:
    case Reduction::max:
      for (std::int64_t i = 0; i < n; ++i) {
        const at::Tensor away = random(i).abs();
        const at::Tensor other = how.reduction() == Reduction::min ? whole + away : whole - away;
        terms.push_back(at::where(owner == i, whole, other));
      }
      break;
    case Reduction::product: {
      at::Tensor rest = whole.clone();
      for (std::int64_t i = 0; i + 1 < n; ++i) {
        // Powers of two, of both signs: exact too.
        const at::Tensor lot = random(i);
        terms.push_back(at::where(lot.lt(0), -2.0, 0.5).to(whole.scalar_type()));
        rest = rest / terms.back();
      }
      terms.push_back(rest);
      break;
    }
    case Reduction::bit_and:
    case Reduction::bit_or:
      for (std::int64_t i = 0; i < n; ++i) {
        const at::Tensor other =
            kind == Reduction::bit_and ? whole.bitwise_or(random(i)) : whole.bitwise_and(random(i));
        terms.push_back(at::where(owner == i, whole, other));
      }
      break;
    default:
      fail<UnsupportedError>("prove", "terms of ", how, " cannot be made up");
  }
  return terms;
}

std::int64_t index_among_partial(const Layout& layout, const Coordinate& at) {
  std::int64_t index = 0;
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (layout.placement(a).is_partial()) index = index * layout.mesh().size(a) + at[a];
  }
  return index;
}

std::vector<Coordinate> coordinates(const Mesh& mesh) {
  std::vector<Coordinate> out;
  for (std::int64_t rank = 0; rank <= mesh.highest(); ++rank) {
    if (const auto at = mesh.coordinate_of(rank)) out.push_back(*at);
  }
  return out;
}

at::Tensor distributed(const Reference& ref, std::size_t input, const Layout& layout,
                       World& world) {
  register_kernels();
  const Spec spec = spec_of(ref.inputs[input], layout);
  Pieces pieces;
  for (const at::Tensor& p : ref.pieces(input, layout)) pieces.push_back(in_order(p, *spec));
  return make_tensor(world.shared_from_this(), TensorState::of(world), spec, std::move(pieces));
}

// ---- comparing -------------------------------------------------------------------------------

double tolerance(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
    case at::kComplexHalf:
      return 1e-2;
    case at::kBFloat16:
      return 6e-2;
    case at::kFloat:
    case at::kComplexFloat:
      return 2e-4;
    default:
      return 1e-8;
  }
}

/// Of the inputs of a call, and its result: that of the coarsest.
double tolerance(const Tensors& inputs, const at::Tensor& result) {
  double t = tolerance(result.scalar_type());
  for (const at::Tensor& i : inputs) {
    if (i.is_floating_point() || i.is_complex()) t = std::max(t, tolerance(i.scalar_type()));
  }
  return t;
}

bool close(const at::Tensor& a, const at::Tensor& b, double t) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (a.numel() == 0) return true;
  if (!a.is_floating_point() && !a.is_complex()) return at::equal(a, b);
  // Many small tensors: allclose would take longer than the ops that it compares.
  const auto numbers = [](const at::Tensor& x) {
    const at::Tensor real = x.is_complex() ? at::view_as_real(x.resolve_conj()) : x;
    return real.resolve_neg().to(at::kDouble).contiguous();
  };
  const at::Tensor x = numbers(a);
  const at::Tensor y = numbers(b);
  const double* p = x.const_data_ptr<double>();
  const double* q = y.const_data_ptr<double>();
  return std::equal(p, p + x.numel(), q, [t](double u, double v) {
    return u == v || (std::isnan(u) && std::isnan(v)) || std::abs(u - v) <= t + t * std::abs(v);
  });
}

std::string values_text(const at::Tensor& t) {
  std::ostringstream out;
  const at::Tensor flat = t.detach().reshape(-1);
  out << '[';
  for (std::int64_t i = 0; i < std::min<std::int64_t>(flat.numel(), 6); ++i) {
    if (i > 0) out << ", ";
    out << flat[i].item();
  }
  out << (flat.numel() > 6 ? ", ...]" : "]");
  return out.str();
}

/// Whether two tensors of these sizes have their dimensions in the same order in memory.
bool same_order(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t j = i + 1; j < sizes.size(); ++j) {
      if (sizes[i] < 2 || sizes[j] < 2) continue;
      if ((a[i] < a[j]) != (b[i] < b[j]) || (a[i] == 0) != (b[i] == 0)) return false;
    }
  }
  return true;
}

/// The value at a coordinate, with partial axes from `axis` on combined.
at::Tensor value_at(const Pieces& pieces, const Layout& layout, Coordinate at, std::size_t axis) {
  const Mesh& mesh = layout.mesh();
  if (axis == mesh.axes()) return pieces[static_cast<std::size_t>(mesh.rank_at(at))];
  const Placement& p = layout.placement(axis);
  if (!p.is_partial()) return value_at(pieces, layout, at, axis + 1);
  Tensors terms;
  for (std::int64_t i = 0; i < mesh.size(axis); ++i) {
    at[axis] = i;
    terms.push_back(to_term(value_at(pieces, layout, at, axis + 1), p));
  }
  const at::ScalarType type = pieces[0].scalar_type();
  return from_terms(combine(terms, p), p, mesh.size(axis), type);
}

/// How a distributed tensor differs from the whole that it should be; empty: it does not.
std::string difference(const at::Tensor& got, const at::Tensor& want, const Tensors& inputs,
                       bool check_order) {
  if (!got.defined() || !want.defined()) {
    return got.defined() == want.defined() ? ""
           : got.defined()                 ? "is there, but should not be"
                                           : "is not there";
  }
  if (!is_ours(got)) return concat("is ", describe(got), " where a distributed tensor is due");
  const DistributedImpl& impl = impl_of(got);
  const Spec& spec = impl.spec();
  if (got.sizes() != want.sizes()) {
    return concat("has sizes (", join(got.sizes()), ") instead of (", join(want.sizes()), ")");
  }
  if (got.scalar_type() != want.scalar_type()) {
    return concat("is ", dtype_text(got.scalar_type()), " instead of ",
                  dtype_text(want.scalar_type()));
  }
  if (check_order && want.numel() > 0 && !same_order(got.sizes(), got.strides(), want.strides())) {
    return concat("has strides (", join(got.strides()), ") instead of (", join(want.strides()),
                  ")");
  }
  const Layout& layout = spec->layout;
  const Layout whole = without_partial(layout);
  const auto all = coordinates(layout.mesh());
  for (std::size_t m = 0; m < all.size(); ++m) {
    const Shape sizes = local_shape(layout, spec->sizes, all[m]);
    const at::Tensor& piece = impl.pieces()[m];
    if (piece.sizes() != to_ref(sizes) || piece.scalar_type() != spec->dtype) {
      return concat("as ", spec, " has a piece ", describe(piece), " on rank ", m,
                    ", where the layout gives (", join(sizes), ")");
    }
  }
  for (std::size_t m = 0; m < all.size(); ++m) {
    if (index_among_partial(layout, all[m]) != 0) continue;
    const at::Tensor expected = cut_piece(want, whole, all[m]);
    const at::Tensor value = value_at(impl.pieces(), layout, all[m], 0);
    if (close(value, expected, tolerance(inputs, want))) continue;
    return concat("as ", spec, " is ", values_text(value), " on rank ", m, " instead of ",
                  values_text(expected));
  }
  return "";
}

// ---- calls -----------------------------------------------------------------------------------

bool is_differentiable(const at::Tensor& t) {
  return t.defined() && (t.is_floating_point() || t.is_complex());
}

/// Gradients of the inputs that require one; undefined for the others.
Tensors gradients_of(const Tensors& results, const Tensors& inputs, const Tensors& given) {
  Tensors from;
  Tensors with;
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (!results[r].defined() || !results[r].requires_grad()) continue;
    from.push_back(results[r]);
    with.push_back(given[r]);
  }
  Tensors to;
  for (const at::Tensor& t : inputs) {
    if (t.requires_grad()) to.push_back(t);
  }
  const auto found = torch::autograd::grad(from, to, with, /*retain_graph=*/false,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  Tensors out;
  std::size_t next = 0;
  for (const at::Tensor& t : inputs)
    out.push_back(t.requires_grad() ? found[next++] : at::Tensor());
  return out;
}

std::string first_line(const std::exception& e) {
  const std::string text(text_of(e));
  return text.substr(0, text.find('\n'));
}

}  // namespace

// ---- Case ------------------------------------------------------------------------------------

std::string Case::to_string() const {
  std::vector<std::string> texts;
  for (const Layout& l : layouts) texts.push_back(l.placements_text());
  return concat(sample.to_string(),
                variant == Variant::in_place ? kInPlace
                : variant == Variant::out    ? kOut
                                             : std::string_view(),
                kWith, join(texts, "; "), kOn, mesh());
}

Case Case::parse(std::string_view text) {
  const auto with = text.rfind(kWith);
  const auto on = text.rfind(kOn);
  if (with == std::string_view::npos || on == std::string_view::npos || on < with) {
    fail<ValueError>(
        "prove_case", "'", text,
        "' is no case, such as `aten::mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]`");
  }
  std::string_view call = text.substr(0, with);
  Variant variant = Variant::functional;
  for (const auto& [suffix, what] :
       {std::pair(kInPlace, Variant::in_place), std::pair(kOut, Variant::out)}) {
    if (!call.ends_with(suffix)) continue;
    call.remove_suffix(suffix.size());
    variant = what;
  }
  Case c{Sample::parse(call), {}, variant};
  const Mesh mesh = Mesh::parse(text.substr(on + kOn.size()));
  std::string_view rest = text.substr(with + kWith.size(), on - with - kWith.size());
  while (true) {
    const auto semicolon = rest.find(';');
    c.layouts.push_back(Layout::parse(rest.substr(0, semicolon), mesh));
    if (semicolon == std::string_view::npos) break;
    rest.remove_prefix(semicolon + 1);
  }
  if (c.layouts.size() != c.sample.tensors().size()) {
    fail<ValueError>("prove_case", "'", text, "' has ", c.layouts.size(), " layouts for ",
                     c.sample.tensors().size(), " tensors");
  }
  return c;
}

std::vector<at::Tensor> tensors_in(const Stack& stack) {
  Tensors out;
  for (const c10::IValue& v : stack) {
    for_each_tensor(v, [&](const at::Tensor& t) { out.push_back(t); });
  }
  return out;
}

Stack with_tensors(const Stack& stack, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  const auto with = [&](const c10::IValue& v) {
    return v.isTensor() ? c10::IValue(tensors[next++]) : v;
  };
  Stack out;
  for (const c10::IValue& v : stack) {
    out.push_back(is_tensor_list(v) ? replaced_list(v, with) : with(v));
  }
  return out;
}

std::vector<Row> rows_of(const Sample& sample, const Stack& arguments) {
  const OpInfo info(sample.op);
  if (!info.rule) return {};
  std::vector<Operand> operands;
  std::vector<std::size_t> given;
  const auto add = [&](const c10::IValue& value) {
    if (value.isTensor()) {
      given.push_back(operands.size());
      const at::Tensor& t = value.toTensor();
      operands.push_back({to_shape(t.sizes()), t.scalar_type(), true});
    } else {
      operands.emplace_back();
    }
  };
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    if (info.arguments[i].kind == ArgumentKind::tensor) {
      add(arguments[i]);
    } else if (info.arguments[i].kind == ArgumentKind::tensor_list && arguments[i].isList()) {
      for (const c10::IValue& element : arguments[i].toListRef()) add(element);
    }
  }
  const Question question(sample.op.schema(), arguments, operands);
  std::vector<Row> rows = info.rule->rows(question);
  for (Row& row : rows) {
    std::vector<Placement> in;
    for (const std::size_t i : given) in.push_back(row.in[i]);
    row.in = std::move(in);
  }
  return rows;
}

std::vector<at::Tensor> made_pieces(const at::Tensor& whole, const Layout& layout,
                                    std::uint64_t seed) {
  const Mesh& mesh = layout.mesh();
  std::int64_t n = 1;
  std::optional<Placement> how;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    if (!layout.placement(a).is_partial()) continue;
    how = layout.placement(a);
    n *= mesh.size(a);
  }
  const Tensors terms = how ? terms_of(whole, *how, n, seed) : Tensors{whole};
  const Layout cut = without_partial(layout);
  Tensors pieces;
  for (const Coordinate& at : coordinates(mesh)) {
    const at::Tensor& term = terms[static_cast<std::size_t>(index_among_partial(layout, at))];
    pieces.push_back(cut_piece(term, cut, at).clone());
  }
  return pieces;
}

std::vector<Placement> placements_for(const TensorSample& tensor) {
  std::vector<Placement> out{Placement::replicate()};
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    out.push_back(Placement::shard(static_cast<int>(d)));
  }
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] < 5) continue;
    out.push_back(Placement::strided_shard(static_cast<int>(d), 2));
    break;
  }
  // What is not finite cannot be made of terms.
  const bool finite = std::all_of(tensor.numbers.begin(), tensor.numbers.end(),
                                  [](double v) { return std::isfinite(v); });
  if (!finite) return out;
  for (const Reduction r : {Reduction::sum, Reduction::avg, Reduction::max, Reduction::min,
                            Reduction::product, Reduction::bit_or, Reduction::bit_and}) {
    if (!is_exact(r, tensor.dtype)) continue;
    // Whole numbers have no room for differing factors, and bits are for truth values here.
    const bool whole = tensor.dtype < DType::f8e4m3;
    if (r == Reduction::product && (whole || tensor.dtype >= DType::c32)) continue;
    if ((r == Reduction::bit_or || r == Reduction::bit_and) && tensor.dtype != DType::b1) continue;
    if ((r == Reduction::min || r == Reduction::max) && tensor.dtype == DType::u8) continue;
    out.push_back(Placement::partial(r));
  }
  return out;
}

std::optional<c10::OperatorHandle> variant_of(const c10::OperatorHandle& op, Variant variant) {
  const c10::FunctionSchema& schema = op.schema();
  auto& dispatcher = c10::Dispatcher::singleton();
  const std::size_t n = schema.arguments().size();
  const auto same_arguments = [&](const c10::FunctionSchema& other) {
    for (std::size_t i = 0; i < n; ++i) {
      if (other.arguments()[i].name() != schema.arguments()[i].name()) return false;
    }
    return true;
  };
  // Views in place take another layout by design.
  if (!schema.arguments().empty() && schema.arguments()[0].alias_info() != nullptr) {
    return std::nullopt;
  }
  if (variant == Variant::in_place) {
    const auto found = dispatcher.findSchema({schema.name() + "_", schema.overload_name()});
    if (!found || found->schema().arguments().size() != n || !same_arguments(found->schema())) {
      return std::nullopt;
    }
    return found;
  }
  const std::string& overload = schema.overload_name();
  for (const std::string& name : {overload + "_out", std::string("out"), overload + ".out"}) {
    const auto found = dispatcher.findSchema({schema.name(), name});
    if (!found) continue;
    const auto& other = found->schema();
    const bool adds_outs =
        other.arguments().size() == n + schema.returns().size() && other.arguments()[n].is_out();
    if (adds_outs && same_arguments(other)) return found;
  }
  return std::nullopt;
}

const std::vector<at::Tensor>& Reference::pieces(std::size_t input, const Layout& layout) const {
  std::pair key(input, layout.to_string());
  const auto known = pieces_.find(key);
  if (known != pieces_.end()) return known->second;
  auto made =
      made_pieces(inputs[input], layout, hash_mix(hash_mix(seed, input), hash_text(key.second)));
  return pieces_.emplace(std::move(key), std::move(made)).first->second;
}

// ---- Bench -----------------------------------------------------------------------------------

World& Bench::world(const Mesh& mesh) {
  auto& world = worlds_[mesh.highest() + 1];
  if (!world) world = lockstep_world(mesh.highest() + 1);
  return *world;
}

const Reference* Bench::reference(const Sample& sample, bool backward, std::uint64_t draw) {
  const std::string key = concat(sample.to_string(), backward ? " grad " : " ", draw);
  const auto known = references_.find(key);
  if (known != references_.end()) return known->second.get();
  auto made = std::make_unique<Reference>();
  Reference& r = *made;
  r.seed = hash_mix(seed_, draw);
  try {
    r.arguments = sample.values(r.seed);
    r.inputs = tensors_in(r.arguments);
    Tensors leaves;
    const auto call = [&](bool with_gradients) {
      leaves.clear();
      for (const at::Tensor& t : r.inputs) {
        at::Tensor leaf = t.detach();
        if (with_gradients && is_differentiable(t)) leaf.requires_grad_(true);
        leaves.push_back(std::move(leaf));
      }
      Stack stack = with_tensors(r.arguments, leaves);
      sample.op.callBoxed(&stack);
      r.results = tensors_in(stack);
    };
    try {
      call(backward);
    } catch (const std::exception&) {
      if (!backward) throw;
      call(false);  // some refuse only because a gradient is asked for
    }
    if (backward) {
      for (std::size_t i = 0; i < r.results.size(); ++i) {
        const at::Tensor& t = r.results[i];
        r.has_gradients |= t.defined() && t.requires_grad();
        r.result_gradients.push_back(t.defined() ? noise(t, hash_mix(seed_, 1000 + i)) : t);
      }
      try {
        if (r.has_gradients) r.gradients = gradients_of(r.results, leaves, r.result_gradients);
        for (at::Tensor& g : r.gradients) {
          if (g.defined() && g._is_zerotensor()) g = at::zeros(g.sizes(), g.options());
        }
      } catch (const std::exception&) {
        r.has_gradients = false;  // not differentiable, or not twice
      }
    }
    for (at::Tensor& t : r.results) {
      if (t.defined()) t = t.detach();
    }
  } catch (const std::exception&) {
    made.reset();
  }
  return references_.emplace(key, std::move(made)).first->second.get();
}

namespace {

Outcome run_functional(const Case& c, const Reference& ref, World& world) {
  Outcome o;
  Tensors inputs;
  for (std::size_t i = 0; i < ref.inputs.size(); ++i) {
    at::Tensor t = distributed(ref, i, c.layouts[i], world);
    if (ref.has_gradients && is_differentiable(t)) t.requires_grad_(true);
    inputs.push_back(std::move(t));
  }
  Stack stack = with_tensors(ref.arguments, inputs);
  const std::uint64_t before = world.ledger().totals().calls;
  c.sample.op.callBoxed(&stack);
  o.communicated = world.ledger().totals().calls != before;
  const Tensors results = tensors_in(stack);
  if (results.size() != ref.results.size()) {
    o.difference = concat("it gives ", results.size(), " tensors instead of ", ref.results.size());
    return o;
  }
  for (std::size_t r = 0; r < results.size(); ++r) {
    o.difference = difference(results[r], ref.results[r], ref.inputs, true);
    if (o.difference.empty()) continue;
    o.difference = concat("result ", r, ' ', o.difference);
    return o;
  }
  if (!ref.has_gradients) return o;
  o.gradients = true;
  Tensors given;
  for (std::size_t r = 0; r < results.size(); ++r) {
    const at::Tensor& g = ref.result_gradients[r];
    given.push_back(g.defined() ? distribute(g, without_partial(layout_of(results[r])), world) : g);
  }
  const Tensors gradients = gradients_of(results, inputs, given);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    o.difference = difference(gradients[i], ref.gradients[i], ref.inputs, false);
    const Layout due = without_partial(c.layouts[i]);
    if (o.difference.empty() && gradients[i].defined() && layout_of(gradients[i]) != due) {
      o.difference = concat("lies as ", layout_of(gradients[i]), " instead of ", due);
    }
    if (o.difference.empty()) continue;
    o.difference = concat("the gradient of tensor ", i, ' ', o.difference);
    return o;
  }
  return o;
}

/// A layout for a result that is given to be written: that of the first tensor, if it can be.
Layout layout_for_out(const Layout& like, const at::Tensor& t) {
  const Layout layout = without_partial(like);
  return static_cast<std::int64_t>(layout.least_dims()) <= t.dim()
             ? layout
             : Layout::replicated(like.mesh());
}

Outcome run_variant(const Case& c, const Reference& ref, World& world) {
  Outcome o;
  const at::NoGradGuard no_grad;
  const auto op = variant_of(c.sample.op, c.variant);
  const bool whole = std::all_of(ref.results.begin(), ref.results.end(),
                                 [](const at::Tensor& t) { return t.defined(); });
  if (!op || !whole) return o;
  Tensors plain;
  Tensors inputs;
  for (std::size_t i = 0; i < ref.inputs.size(); ++i) {
    plain.push_back(ref.inputs[i].clone());
    inputs.push_back(distributed(ref, i, c.layouts[i], world).clone());
  }
  Stack want = with_tensors(ref.arguments, plain);
  Stack got = with_tensors(ref.arguments, inputs);
  Tensors written{plain.empty() ? at::Tensor() : plain[0]};
  Tensors ours{inputs.empty() ? at::Tensor() : inputs[0]};
  if (c.variant == Variant::out) {
    written.clear();
    ours.clear();
    for (const at::Tensor& r : ref.results) {
      written.push_back(at::zeros_like(r));
      ours.push_back(distribute(at::zeros_like(r), layout_for_out(c.layouts[0], r), world));
      want.emplace_back(written.back());
      got.emplace_back(ours.back());
    }
  }
  std::vector<Layout> before;
  for (const at::Tensor& t : ours) before.push_back(layout_of(t));
  try {
    op->callBoxed(&want);
  } catch (const std::exception&) {
    return o;  // the plain op refuses too: sizes or dtypes that cannot be written
  }
  // What the op gives without out=: ATen's binary_cross_entropy.out gives something else.
  if (c.variant == Variant::out) written = ref.results;
  op->callBoxed(&got);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    o.difference = difference(ours[i], written[i], ref.inputs, false);
    if (o.difference.empty() && layout_of(ours[i]) != before[i]) {
      o.difference = concat("changed its layout to ", layout_of(ours[i]));
    }
    if (o.difference.empty()) continue;
    o.difference = concat("what was written ", o.difference);
    return o;
  }
  return o;
}

}  // namespace

Outcome Bench::run(const Case& c, bool backward) {
  const bool functional = c.variant == Variant::functional;
  const Reference* ref = reference(c.sample, backward && functional);
  if (ref == nullptr) return {};
  try {
    return functional ? run_functional(c, *ref, world(c.mesh()))
                      : run_variant(c, *ref, world(c.mesh()));
  } catch (const std::exception& e) {
    Outcome o;
    o.difference = concat("throws: ", first_line(e));
    return o;
  }
}

std::optional<std::vector<Placement>> Bench::legal(const Case& c, std::uint64_t draw) {
  const Reference* ref = reference(c.sample, false, draw);
  if (ref == nullptr) return std::nullopt;
  const at::NoGradGuard no_grad;
  const Mesh& mesh = c.mesh();
  const std::int64_t n = mesh.size();
  std::vector<Tensors> results;  // by rank
  try {
    for (std::int64_t rank = 0; rank < n; ++rank) {
      Tensors mine;
      for (std::size_t i = 0; i < ref->inputs.size(); ++i) {
        mine.push_back(ref->pieces(i, c.layouts[i])[static_cast<std::size_t>(rank)]);
      }
      Stack stack = with_tensors(ref->arguments, mine);
      c.sample.op.callBoxed(&stack);
      results.push_back(tensors_in(stack));
      if (results.back().size() != ref->results.size()) return std::nullopt;
    }
  } catch (const std::exception&) {
    return std::nullopt;
  }
  std::vector<Placement> found;
  for (std::size_t r = 0; r < ref->results.size(); ++r) {
    const at::Tensor& whole = ref->results[r];
    if (!whole.defined()) {
      found.push_back({});
      continue;
    }
    const auto dtype = dtype_of(whole.scalar_type());
    if (!dtype) return std::nullopt;
    const double t = tolerance(ref->inputs, whole);
    TensorSample like;
    like.dtype = *dtype;
    like.sizes = whole.sizes().vec();
    Pieces mine;
    for (const Tensors& of_rank : results) mine.push_back(of_rank[r]);
    std::optional<Placement> fits;
    for (const Placement& p : placements_for(like)) {
      if (p.is_strided()) continue;
      const Layout layout(mesh, std::vector<Placement>{p});
      const Layout open = without_partial(layout);
      bool same = true;
      for (std::int64_t rank = 0; rank < n && same; ++rank) {
        const at::Tensor expected = cut_piece(whole, open, {rank});
        const at::Tensor& piece = mine[static_cast<std::size_t>(rank)];
        same = piece.defined() && piece.sizes() == expected.sizes() &&
               piece.scalar_type() == expected.scalar_type() &&
               (p.is_partial() || close(piece, expected, t));
      }
      if (same && p.is_partial()) same = close(value_at(mine, layout, {0}, 0), whole, t);
      if (!same) continue;
      fits = p;
      break;
    }
    if (!fits) return std::nullopt;
    found.push_back(*fits);
  }
  return found;
}

}  // namespace intarsia
