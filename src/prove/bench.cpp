#include "prove/bench.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/lockstep.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "prove/combinations.h"
#include "prove/difference.h"
#include "prove/made_pieces.h"
#include "tensor/core/impl.h"
#include "tensor/dispatch/dispatch.h"
#include "tensor/move/state.h"
#include "world/transport/dtype.h"
#include "world/transport/error_text.h"

namespace intarsia {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

at::Tensor distributed(const Reference& ref, std::size_t input, const Layout& layout,
                       World& world) {
  register_kernels();
  const Spec spec = spec_of(ref.inputs[input], layout);
  Pieces pieces;
  for (const at::Tensor& p : ref.pieces(input, layout)) pieces.push_back(in_order(p, *spec));
  return make_tensor(world.shared_from_this(), TensorState::of(world), spec, std::move(pieces));
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
      o.difference = concat("is laid out as ", layout_of(gradients[i]), " instead of ", due);
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
  const bool complete = std::all_of(ref.results.begin(), ref.results.end(),
                                    [](const at::Tensor& t) { return t.defined(); });
  if (!op || !complete) return o;
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

// ---- Reference and Bench ---------------------------------------------------------------------

const std::vector<at::Tensor>& Reference::pieces(std::size_t input, const Layout& layout) const {
  std::pair key(input, layout.to_string());
  const auto known = pieces_.find(key);
  if (known != pieces_.end()) return known->second;
  auto made =
      made_pieces(inputs[input], layout, hash_mix(hash_mix(seed, input), hash_text(key.second)));
  return pieces_.emplace(std::move(key), std::move(made)).first->second;
}

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
    const at::Tensor& result = ref->results[r];
    if (!result.defined()) {
      found.push_back({});
      continue;
    }
    const auto dtype = dtype_of(result.scalar_type());
    if (!dtype) return std::nullopt;
    const double t = tolerance(ref->inputs, result);
    TensorSample like;
    like.dtype = *dtype;
    like.sizes = result.sizes().vec();
    Pieces mine;
    for (const Tensors& of_rank : results) mine.push_back(of_rank[r]);
    std::optional<Placement> fits;
    for (const Placement& p : placements_for(like)) {
      if (p.is_strided()) continue;
      const Layout layout(mesh, std::vector<Placement>{p});
      const Layout open = without_partial(layout);
      bool same = true;
      for (std::int64_t rank = 0; rank < n && same; ++rank) {
        const at::Tensor expected = local_piece(result, open, {rank});
        const at::Tensor& piece = mine[static_cast<std::size_t>(rank)];
        same = piece.defined() && piece.sizes() == expected.sizes() &&
               piece.scalar_type() == expected.scalar_type() &&
               (p.is_partial() || all_close(piece, expected, t));
      }
      if (same && p.is_partial()) same = all_close(value_at(mine, layout, {0}, 0), result, t);
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
