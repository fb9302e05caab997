#include "intarsia/overlap.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "intarsia/tensor_parallel.h"
#include "tensor/core/impl.h"

namespace intarsia {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<at::Tensor>;

/// How a dimension travels. Chunk j holds the j-th part of each rank's part, so that each chunk is
/// itself sharded evenly over the ranks.
struct Way : torch::CustomClassHolder {
  std::string axis;
  std::int64_t dim = 0;
  std::int64_t ranks = 1;
  std::int64_t chunks = 1;
  std::vector<Layout> results = {};                   ///< of the layers
  std::vector<std::optional<std::size_t>> bias = {};  ///< of each layer, which of the biases it has

  /// A chunk of a tensor, whether the ranks hold parts of it or all of it. Communicates nothing.
  at::Tensor chunk(const at::Tensor& t, std::int64_t j) const {
    return t.unflatten(dim, {ranks, chunks, -1}).select(dim + 1, j).flatten(dim, dim + 1);
  }
  at::Tensor joined(const Tensors& parts) const {
    Tensors by_rank;
    for (const at::Tensor& part : parts) by_rank.push_back(part.unflatten(dim, {ranks, -1}));
    return at::stack(by_rank, dim + 1).flatten(dim, dim + 2);
  }

  MovingTensor start(const at::Tensor& chunk, const Placement& placement) const {
    return start_redistribute(chunk, layout_of(chunk).with(axis, placement),
                              {.source_stays = true});
  }
  MovingTensor start_gather(const at::Tensor& t, std::int64_t j) const {
    return start(chunk(t, j), Placement::replicate());
  }
  MovingTensor start_scatter(const at::Tensor& partial) const {
    return start(partial, Placement::shard(static_cast<int>(dim)));
  }
  at::Tensor joined(std::vector<MovingTensor>& moving) const {
    Tensors parts;
    for (MovingTensor& m : moving) parts.push_back(m.wait());
    return joined(parts);
  }
};
using WayPointer = c10::intrusive_ptr<Way>;

/// The gradient of a result, laid out like the result; replicated along the axis if it came so.
at::Tensor gradient_of(const at::Tensor& given, const Layout& result, const std::string& axis) {
  if (!given.defined() || !has_layout(given)) return given;
  const bool replicated = layout_of(given).placement(axis).is_replicate();
  return redistribute(given, replicated ? result.with(axis, Placement::replicate()) : result);
}

void add_to(at::Tensor& sum, const at::Tensor& addend) {
  if (sum.defined()) {
    sum.add_(addend);
  } else {
    sum = addend;
  }
}

at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x) {
  return at::mm(gradient.flatten(0, -2).t(), x.flatten(0, -2));
}

/// Over all dimensions but the last.
at::Tensor bias_gradient(const at::Tensor& gradient) { return gradient.flatten(0, -2).sum(0); }

void check_no_graph() {
  if (!at::GradMode::is_enabled()) return;
  fail<UnsupportedError>("overlap",
                         "a gradient with a graph (create_graph) does not go through linear layers "
                         "in chunks; use chunks = 1");
}

WayPointer way_of(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Way>(ctx->saved_data["way"].toCapsule());
}

/// Inputs: x, the weights, and the biases of the layers that have one.
struct GatheredLinears : torch::autograd::Function<GatheredLinears> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weights,
                               at::TensorList biases, const WayPointer& way) {
    std::vector<MovingTensor> moving;
    for (std::int64_t j = 0; j < way->chunks; ++j) moving.push_back(way->start_gather(x, j));
    Tensors saved = weights.vec();
    std::vector<Tensors> parts(weights.size());
    for (MovingTensor& m : moving) {
      const at::Tensor chunk = m.wait();
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const at::Tensor bias = way->bias[i] ? biases[*way->bias[i]] : at::Tensor();
        parts[i].push_back(at::linear(chunk, weights[i], bias));
      }
      saved.push_back(chunk);
    }
    Tensors out;
    for (const Tensors& of_weight : parts) {
      out.push_back(way->joined(of_weight));
      way->results.push_back(layout_of(out.back()));
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["way"] = c10::IValue::make_capsule(way);
    ctx->set_materialize_grads(false);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    check_no_graph();
    const WayPointer way = way_of(ctx);
    const Tensors saved = ctx->get_saved_variables();
    const std::size_t n = way->results.size();
    Tensors gradients;
    for (std::size_t i = 0; i < n; ++i) {
      gradients.push_back(gradient_of(given[i], way->results[i], way->axis));
    }
    const auto biases = std::count_if(way->bias.begin(), way->bias.end(),
                                      [](const auto& place) { return place.has_value(); });
    variable_list out(n + 2 + static_cast<std::size_t>(biases));
    std::vector<MovingTensor> moving;
    for (std::int64_t j = 0; j < way->chunks && ctx->needs_input_grad(0); ++j) {
      at::Tensor sum;
      for (std::size_t i = 0; i < n; ++i) {
        if (gradients[i].defined()) add_to(sum, at::matmul(way->chunk(gradients[i], j), saved[i]));
      }
      if (sum.defined()) moving.push_back(way->start_scatter(sum));
    }
    at::Tensor x;
    for (std::size_t i = 0; i < n; ++i) {
      if (!gradients[i].defined()) continue;
      if (way->bias[i] && ctx->needs_input_grad(n + 1 + *way->bias[i])) {
        out[n + 1 + *way->bias[i]] = bias_gradient(gradients[i]);
      }
      if (!ctx->needs_input_grad(i + 1)) continue;
      if (!x.defined()) {
        x = way->joined({saved.begin() + static_cast<std::ptrdiff_t>(n), saved.end()});
      }
      out[i + 1] = weight_gradient(gradients[i], x);
    }
    if (!moving.empty()) out[0] = way->joined(moving);
    return out;
  }
};

struct ScatteredLinear : torch::autograd::Function<ScatteredLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const WayPointer& way) {
    std::vector<MovingTensor> moving;
    for (std::int64_t j = 0; j < way->chunks; ++j) {
      moving.push_back(way->start_scatter(at::linear(way->chunk(x, j), weight)));
    }
    at::Tensor out = way->joined(moving);
    if (bias) out.add_(*bias);
    way->bias.push_back(bias ? std::optional<std::size_t>(0) : std::nullopt);
    way->results.push_back(layout_of(out));
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x, weight});
    ctx->saved_data["way"] = c10::IValue::make_capsule(way);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    check_no_graph();
    const WayPointer way = way_of(ctx);
    const Tensors saved = ctx->get_saved_variables();
    const at::Tensor gradient = gradient_of(given[0], way->results[0], way->axis);
    std::vector<MovingTensor> moving;
    for (std::int64_t j = 0; j < way->chunks; ++j) moving.push_back(way->start_gather(gradient, j));
    Tensors chunks;
    Tensors parts;
    for (MovingTensor& m : moving) {
      chunks.push_back(m.wait());
      if (ctx->needs_input_grad(0)) parts.push_back(at::matmul(chunks.back(), saved[1]));
    }
    variable_list out(4);
    if (ctx->needs_input_grad(0)) out[0] = way->joined(parts);
    const at::Tensor gathered = way->joined(chunks);
    if (ctx->needs_input_grad(1)) out[1] = weight_gradient(gathered, saved[0]);
    if (way->bias[0] && ctx->needs_input_grad(2)) out[2] = bias_gradient(gathered);
    return out;
  }
};

// ---- whether, and in how many chunks ----

/// The most elements that a rank holds.
double local_elements(const at::Tensor& t, const Layout& layout) {
  return static_cast<double>(piece_bytes(layout, t.sizes(), /*element_size=*/1));
}

/// What travels: a tensor of these sizes, from one layout to the other. What a rank multiplies it
/// with, and what is copied only if there are several chunks, in elements.
struct Work {
  Layout from;
  Layout to;
  std::vector<std::int64_t> sizes;
  double rows = 0;
  double weights = 0;
  double copied = 0;
};

/// The number of chunks that takes least time by the topology. More must be worth it.
std::int64_t best_chunks(const at::Tensor& x, const Way& way, const Work& work) {
  PlanCache& plans = world_of(x).plans();
  const Topology& topology = plans.topology();
  const Mesh& mesh = work.from.mesh();
  const auto axis = static_cast<std::int8_t>(mesh.axis_index(way.axis));
  const Link& link = topology.link(mesh, {&axis, 1});
  const auto d = static_cast<std::size_t>(way.dim);
  const auto seconds = [&](std::int64_t chunks) {
    std::vector<std::int64_t> sizes = work.sizes;
    sizes[d] /= chunks;
    const auto plan = plans.plan(work.from, work.to, sizes, x.element_size());
    const double multiply = 2 * work.rows * work.weights / topology.flops;
    if (chunks == 1) return plan->seconds + multiply;
    // Each chunk reads all weights, and to start a collective keeps a rank from multiplying.
    const double element = static_cast<double>(x.element_size()) / topology.copy_bandwidth;
    const double once = (multiply + work.copied * element) / static_cast<double>(chunks);
    return overlapped_seconds(chunks, plan->seconds, once + work.weights * element + link.overhead);
  };
  constexpr double kWorthIt = 0.98;
  std::int64_t best = 1;
  double least = seconds(1);
  for (std::int64_t chunks = 2; work.sizes[d] % (way.ranks * chunks) == 0; chunks *= 2) {
    const double now = seconds(chunks);
    if (now > kWorthIt * least) break;
    best = chunks;
    least = now;
  }
  return best;
}

bool is_unsharded(const Layout& layout, std::int64_t dim) {
  return layout.axes_of(static_cast<int>(dim)).empty();
}

/// Null where the layer is done in one go. `work` is asked only where it decides.
template <class WorkOf>
WayPointer find_way(const at::Tensor& x, std::string_view axis, std::int64_t dim,
                    const OverlapOptions& options, const WorkOf& work) {
  auto way = c10::make_intrusive<Way>();
  way->axis = axis;
  way->dim = dim;
  way->ranks = layout_of(x).mesh().size(axis);
  const std::int64_t length = x.size(dim);
  if (way->ranks == 1 || length == 0 || length % way->ranks != 0) return {};
  way->chunks = options.chunks == 0 ? best_chunks(x, *way, work()) : options.chunks;
  if (way->chunks == 1 || length % (way->ranks * way->chunks) != 0) return {};
  return way;
}

void check(const OverlapOptions& options, std::string_view where) {
  if (options.chunks >= 0) return;
  fail<ValueError>(where, "there are no ", options.chunks,
                   " chunks; give 1 or more, or 0 for as many as are best");
}

/// As autocast has the operands of linear layers.
at::Tensor cast(const at::Tensor& t) {
  const at::DeviceType device = t.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return t;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
}

Layout with_unsharded_dim(Layout layout, std::int64_t dim) {
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement p = layout.placement(a);
    if (p.is_shard() && p.dim() == dim) layout = layout.with(a, Placement::replicate());
  }
  return layout;
}

double weight_elements(const std::vector<LinearParameters>& linears) {
  double sum = 0;
  for (const LinearParameters& l : linears) {
    sum += has_layout(l.weight) ? local_elements(l.weight, layout_in_use(l.weight))
                                : static_cast<double>(l.weight.numel());
  }
  return sum;
}

/// How many rows of the last dimension a rank multiplies. `layout`: that of x, with the dimension
/// that travels not sharded by the axis.
double rows(const at::Tensor& x, const Layout& layout) {
  return local_elements(x, with_unsharded_dim(layout, x.dim() - 1)) /
         static_cast<double>(x.size(-1));
}

WayPointer way_to_gather(const at::Tensor& x, const std::vector<LinearParameters>& linears,
                         std::string_view axis, const OverlapOptions& options) {
  if (options.chunks == 1 || !has_layout(x) || linears.empty()) return {};
  const Layout layout = layout_of(x);
  if (!layout.mesh().has_axis(axis)) return {};
  const Placement p = layout.placement(axis);
  if (!p.is_shard() || p.split() != 1 || p.dim() + 1 >= x.dim()) return {};
  const Layout gathered = layout.with(std::string(axis), Placement::replicate());
  if (!is_unsharded(gathered, p.dim())) return {};
  return find_way(x, axis, p.dim(), options, [&]() -> Work {
    const double height = rows(x, gathered);
    const double weights = weight_elements(linears);
    const double results = height * weights / static_cast<double>(x.size(-1));
    return {layout, gathered, x.sizes().vec(), height, weights, results};
  });
}

WayPointer way_to_scatter(const at::Tensor& x, const LinearParameters& linear,
                          std::string_view axis, std::int64_t dim, const OverlapOptions& options) {
  if (options.chunks == 1 || !has_layout(x) || dim + 1 >= x.dim()) return {};
  const Layout layout = layout_of(x);
  if (!layout.mesh().has_axis(axis) || !is_unsharded(layout, dim)) return {};
  return find_way(x, axis, dim, options, [&]() -> Work {
    const std::string name(axis);
    const Layout result = with_unsharded_dim(layout, x.dim() - 1);
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes.back() = linear.weight.size(0);
    return {result.with(name, Placement::partial()),
            result.with(name, Placement::shard(static_cast<int>(dim))),
            sizes,
            rows(x, result),
            weight_elements({linear}),
            local_elements(x, layout)};
  });
}

}  // namespace

double overlapped_seconds(std::int64_t chunks, double send, double compute) {
  return send + compute + static_cast<double>(chunks - 1) * std::max(send, compute);
}

std::vector<at::Tensor> gathered_linears(const at::Tensor& x,
                                         const std::vector<LinearParameters>& linears,
                                         std::string_view axis, const OverlapOptions& options) {
  check(options, "gathered_linears");
  Tensors out;
  const WayPointer way = way_to_gather(x, linears, axis, options);
  if (!way) {
    const at::Tensor gathered = placed(x, axis, Placement::replicate());
    for (const LinearParameters& l : linears) out.push_back(at::linear(gathered, l.weight, l.bias));
    return out;
  }
  Tensors weights;
  Tensors biases;
  for (const LinearParameters& l : linears) {
    weights.push_back(cast(l.weight));
    way->bias.push_back(l.bias.defined() ? std::optional(biases.size()) : std::nullopt);
    if (l.bias.defined()) biases.push_back(cast(l.bias));
  }
  return GatheredLinears::apply(cast(x), at::TensorList(weights), at::TensorList(biases), way);
}

at::Tensor scattered_linear(const at::Tensor& x, const LinearParameters& linear,
                            std::string_view axis, int dim, const OverlapOptions& options) {
  constexpr std::string_view where = "scattered_linear";
  check(options, where);
  const std::int64_t d = normalize_dim(where, dim, static_cast<std::size_t>(x.dim()));
  const WayPointer way = way_to_scatter(x, linear, axis, d, options);
  if (!way) {
    return placed(at::linear(x, linear.weight, linear.bias), axis,
                  Placement::shard(static_cast<int>(d)));
  }
  std::optional<at::Tensor> bias;
  if (linear.bias.defined()) bias = cast(linear.bias);
  return ScatteredLinear::apply(cast(x), cast(linear.weight), bias, way);
}

}  // namespace intarsia
