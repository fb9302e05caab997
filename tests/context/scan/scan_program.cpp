// Layers with a state, scanned over ranks in random layouts, orders and schedules, beside the same
// layer position by position on one rank in float64: a diagonal recurrence, linear attention with
// decays, and the gated delta rule.
//
//   scan_program [--lockstep RANKS] [--from SEED] [--count N]
#include <torch/torch.h>

#include <string>

#include "base/text.h"
#include "context/campaign.h"
#include "context/mask/masks.h"
#include "intarsia/boxes.h"
#include "intarsia/scan.h"
#include "intarsia/tensor.h"

namespace intarsia::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

template <class T>
const T& one_of(Random& random, const std::vector<T>& from) {
  return from[static_cast<std::size_t>(below(random, static_cast<std::int64_t>(from.size())))];
}

/// A layer, its inputs, and what it does position by position.
struct Kind {
  std::string name;
  ScanLayer layer;
  Tensors along, others;  // in float64
  /// `sign`: -1; or 1, with all inputs positive, for the sum of the sizes of what is added up.
  std::function<at::Tensor(const Tensors& along, const Tensors& others, double sign)> step_by_step;
};

// ---- h[t] = decay[t] * h[t-1] + x[t] -----------------------------------------------------------

at::Tensor recurrence_step_by_step(const Tensors& along, const Tensors&, double) {
  Tensors out;
  at::Tensor h = at::zeros_like(along[0].select(1, 0));
  for (std::int64_t t = 0; t < along[0].size(1); ++t) {
    h = along[1].select(1, t) * h + along[0].select(1, t);
    out.push_back(h);
  }
  return at::stack(out, 1);
}

// ---- states that are matrices: S[t] = A[t] S[t-1] + k[t] v[t]^T, o[t] = q[t] S[t] --------------
// q, k, v: [batch, positions, heads, size]; A[t]: decay[t] of a head, or decay[t] (1 - beta k k^T).

at::Tensor pairwise(const at::Tensor& a, const at::Tensor& b) {
  return a.unsqueeze(-1) * b.unsqueeze(-2);
}
at::Tensor read(const at::Tensor& q, const at::Tensor& state) {
  return at::matmul(q.unsqueeze(-2), state).squeeze(-2);
}

at::Tensor transition(const Tensors& along, std::int64_t t, double sign) {
  const at::Tensor k = along[1].select(1, t);
  const at::Tensor decay = along[3].select(1, t).unsqueeze(-1);
  const at::Tensor one = at::eye(k.size(-1), k.options()).expand({k.size(0), k.size(1), -1, -1});
  if (along.size() == 4) return decay * one;
  return decay * (one + sign * along[4].select(1, t).unsqueeze(-1) * pairwise(k, k));
}

at::Tensor written(const Tensors& along, const Tensors& others, std::int64_t t) {
  at::Tensor k = along[1].select(1, t) * others[0].unsqueeze(-1);  // a gain of each head
  if (along.size() > 4) k = k * along[4].select(1, t);
  return pairwise(k, along[2].select(1, t));
}

/// The state after a run, what the run does to the state before it, and its outputs.
struct Run {
  at::Tensor does, state, out;
};
Run matrix_run(const Tensors& along, const Tensors& others, at::Tensor state, double sign) {
  Run run;
  Tensors out;
  for (std::int64_t t = 0; t < along[0].size(1); ++t) {
    const at::Tensor a = transition(along, t, sign);
    run.does = run.does.defined() ? at::matmul(a, run.does) : a;
    const at::Tensor w = written(along, others, t);
    state = state.defined() ? at::matmul(a, state) + w : w;
    out.push_back(read(along[0].select(1, t), state));
  }
  run.state = state;
  run.out = at::stack(out, 1);
  return run;
}

ScanLayer matrix_layer() {
  return {.summary = [](const Tensors& along, const Tensors& others) -> ScanLayer::Summary {
            const Run run = matrix_run(along, others, {}, -1);
            return {.state = {run.does, run.state}};
          },
          .combine = [](const ScanState& a, const ScanState& b) -> ScanState {
            return {at::matmul(b[0], a[0]), at::matmul(b[0], a[1]) + b[1]};
          },
          .outputs = [](const Tensors& along, const Tensors& others, const Tensors&,
                        const std::optional<ScanState>& before) -> Tensors {
            return {matrix_run(along, others, before ? (*before)[1] : at::Tensor(), -1).out};
          }};
}

at::Tensor random_values(Random& random, std::vector<std::int64_t> sizes) {
  at::Generator g = at::detail::createCPUGenerator(random());
  return at::randn(sizes, g, at::TensorOptions(at::kDouble));
}
at::Tensor random_decays(Random& random, std::vector<std::int64_t> sizes) {
  return at::sigmoid(random_values(random, std::move(sizes)) + 1);
}

Kind random_kind(Random& random, std::int64_t ranks) {
  const std::int64_t batch = 1 + below(random, 3);
  const std::int64_t size = 1 + below(random, below(random, 8) == 0 ? 4 : 40);
  const std::int64_t heads = below(random, 3) == 0 ? 1 + below(random, 3) : ranks;
  const std::int64_t width = 1 + below(random, 4);
  const auto values = [&](std::int64_t last) {
    return random_values(random, {batch, size, heads, last});
  };
  Kind out;
  const std::int64_t kind = below(random, 3);
  if (kind == 0) {
    out.name = "recurrence";
    out.layer = linear_recurrence_layer(1);
    out.along = {values(width),
                 random_decays(random, {batch, size, heads, 1 + (width - 1) * below(random, 2)})};
    out.step_by_step = recurrence_step_by_step;
    return out;
  }
  out.name = kind == 1 ? "linear attention" : "gated delta rule";
  out.layer = matrix_layer();
  at::Tensor k = values(width);
  k = k / (k.norm(2, -1, true) + 1);
  out.along = {values(width), k, values(1 + below(random, 4)),
               random_decays(random, {batch, size, heads, 1})};
  if (kind == 2) out.along.push_back(random_decays(random, {batch, size, heads, 1}));
  out.others = {random_values(random, {heads})};
  out.step_by_step = [](const Tensors& along, const Tensors& others, double sign) {
    return matrix_run(along, others, {}, sign).out;
  };
  return out;
}

Layout random_layout(Random& random, const Mesh& mesh) {
  std::vector<Placement> out;
  static const std::vector<std::string> kAny{"S(0)", "S(1)", "S(1)", "S(2)", "R"};
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const bool is_sequence = mesh.name(a) == "cp" && below(random, 8) > 0;
    out.push_back(Placement::parse(is_sequence ? "S(1)" : one_of(random, kAny)));
  }
  return Layout(mesh, out);
}

Mesh random_mesh(Random& random, std::int64_t ranks) {
  std::vector<std::string> texts{concat("[cp=", ranks, "]")};
  if (ranks % 2 == 0 && ranks > 2) texts.push_back(concat("[a=2,cp=", ranks / 2, "]"));
  if (ranks == 8) texts.emplace_back("[a=2,b=2,cp=2]");
  return Mesh::parse(one_of(random, texts));
}

at::Tensor in_order(const at::Tensor& t, const SequenceOrder& order, bool back) {
  if (order.is_contiguous()) return t;
  const auto index = back ? order.places(t.size(1)) : order.positions(t.size(1));
  return t.index_select(1, at::tensor(index, at::kLong));
}

/// Zeros for what is not used: the decay of a first position.
Tensors grads_of(const at::Tensor& out, const Tensors& in, const at::Tensor& grad) {
  Tensors grads = torch::autograd::grad({out}, in, {grad}, std::nullopt, false, true);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!grads[i].defined()) grads[i] = at::zeros_like(in[i]);
  }
  return grads;
}

CaseResult run_case(std::uint64_t seed, World& world) {
  Random random(seed);
  const Mesh mesh = random_mesh(random, world.size());
  Kind kind = random_kind(random, world.size());
  const Layout layout = random_layout(random, mesh);
  const std::int64_t size = kind.along[0].size(1);
  static const std::vector<at::ScalarType> kTypes{at::kDouble, at::kFloat};
  const at::ScalarType dtype = one_of(random, kTypes);
  ScanOptions options;
  static const std::vector<ScanSchedule> kSchedules{ScanSchedule::automatic, ScanSchedule::gather,
                                                    ScanSchedule::doubling, ScanSchedule::doubling};
  options.schedule = one_of(random, kSchedules);
  if (below(random, 4) == 0 && options.schedule != ScanSchedule::doubling) {
    options.order = SequenceOrder::head_tail(shard_lengths(size, 1 + below(random, 5)));
  }
  const bool other_is_sharded = below(random, 2) == 0;
  CaseResult result{.text = concat("seed ", seed, ": ", kind.name, " ", c10::toString(dtype), " [",
                                   join(kind.along[0].sizes()), "] on ", layout, ", ",
                                   to_string(options.schedule), ", order ", options.order)};

  // As it should be, in float64, of the values that dtype holds.
  const auto rounded = [&](const at::Tensor& t) { return t.to(dtype).to(at::kDouble); };
  const auto all = [&](const auto& change) {
    Tensors out;
    for (const Tensors* list : {&kind.along, &kind.others}) {
      for (const at::Tensor& t : *list) out.push_back(change(rounded(t)).requires_grad_());
    }
    return out;
  };
  const auto of = [&](const Tensors& in, double sign) {
    const auto middle = in.begin() + static_cast<std::ptrdiff_t>(kind.along.size());
    return kind.step_by_step({in.begin(), middle}, {middle, in.end()}, sign);
  };
  const Tensors in = all([](const at::Tensor& t) { return t.clone(); });
  const Tensors sizes = all([](const at::Tensor& t) { return t.abs(); });
  const at::Tensor want = of(in, -1);
  const at::Tensor want_size = of(sizes, 1);
  const at::Tensor grad = rounded(random_values(random, want.sizes().vec()));
  const Tensors want_grads = grads_of(want, in, grad);
  const Tensors grad_sizes = grads_of(want_size, sizes, grad.abs());

  Tensors ours;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const at::Tensor t = in[i].detach().to(dtype);
    Layout mine = layout;
    if (i >= kind.along.size()) {
      mine = Layout::replicated(mesh);
      for (std::size_t a = 0; a < mesh.axes(); ++a) {  // a gain of heads, sharded as heads are
        const bool are_heads = layout.placement(a).is_shard(2);
        if (are_heads) mine = mine.with(a, Placement::shard(0));
        if (!are_heads && !layout.has_partial() && other_is_sharded && layout.axes_of(2).empty() &&
            a == 0 && layout.placement(a).is_shard(1)) {
          mine = mine.with(a, Placement::shard(0));
        }
      }
    } else if (i > 0 && below(random, 3) == 0) {
      mine = Layout::replicated(mesh);
    } else {
      for (std::size_t a = 0; a < mesh.axes(); ++a) {
        const Placement& p = layout.placement(a);
        if (p.is_shard() && t.size(p.dim()) == 1 && in[0].size(p.dim()) != 1) {
          mine = mine.with(a, Placement::replicate());
        }
      }
    }
    const at::Tensor stored = i < kind.along.size() ? in_order(t, options.order, false) : t;
    ours.push_back(distribute(stored, mine, world).requires_grad_());
  }
  const auto middle = ours.begin() + static_cast<std::ptrdiff_t>(kind.along.size());
  const at::Tensor got = scan(kind.layer, {ours.begin(), middle}, {middle, ours.end()}, options)[0];
  got.backward(distribute(in_order(grad, options.order, false).to(dtype), layout_of(got), world));
  const double epsilon = dtype == at::kDouble ? 0x1p-52 : 0x1p-23;
  // Along a path no more factors and sums than these are rounded.
  const double allowed = epsilon * static_cast<double>(12 * (size + world.size()) + 64);
  const auto compare = [&](const std::string& what, const at::Tensor& have,
                           const at::Tensor& wanted, const at::Tensor& scale) {
    if (have.sizes() != wanted.sizes()) result.wrong = what + " has other sizes";
    const at::Tensor off = (have.to(at::kDouble) - wanted).abs() / (scale * allowed + 1e-300);
    const double worst = off.numel() > 0 ? off.nan_to_num(INFINITY).max().item<double>() : 0;
    if (worst > 1)
      result.wrong += concat(what, " is off by ", worst, " times what rounding explains. ");
  };
  compare("the output", in_order(full(got.detach()), options.order, true), want, want_size);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    at::Tensor mine = full(ours[i].grad());
    if (i < kind.along.size()) mine = in_order(mine, options.order, true);
    compare(concat("the gradient of input ", i), mine, want_grads[i], grad_sizes[i]);
  }
  return result;
}

}  // namespace
}  // namespace intarsia::testing

int main(int argc, char** argv) {
  return intarsia::testing::campaign(argc, argv, intarsia::testing::run_case);
}
