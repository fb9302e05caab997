#include "intarsia/tensor_parallel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/pattern.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "tensor_parallel";
constexpr std::size_t kNearNames = 4;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// `matches` for a name of which the beginning may be missing.
bool fits_end(std::string_view name, std::string_view pattern) {
  const auto alternatives = split(pattern, '|');
  return std::any_of(alternatives.begin(), alternatives.end(), [&](std::string_view one) {
    return matches(name, one) || one.ends_with(concat('.', name));
  });
}

/// How many letters must be changed, added or left out to make one text of the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// `layers.0.wq` as `layers.*.wq`: a name that stands for all layers.
std::string without_numbers(std::string_view name) {
  std::vector<std::string_view> parts = split(name, '.');
  for (std::string_view& part : parts) {
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) part = "*";
  }
  return join(parts, ".");
}

std::string near_names(std::string_view pattern, const std::vector<std::string>& modules) {
  std::set<std::string> names;
  for (const std::string& name : modules) names.insert(without_numbers(name));
  std::vector<std::pair<std::size_t, std::string>> order;
  for (const std::string& name : names) {
    std::size_t nearest = std::string::npos;
    for (const std::string_view one : split(pattern, '|'))
      nearest = std::min(nearest, distance(one, name));
    order.emplace_back(nearest, name);
  }
  std::sort(order.begin(), order.end());
  if (order.size() > kNearNames) order.resize(kNearNames);
  std::vector<std::string> nearest;
  for (auto& [far, name] : order) nearest.push_back(std::move(name));
  return nearest.empty() ? "the model has no modules" : "near names are " + join(nearest, ", ");
}

void check_modules(const TensorParallelPlan& plan, const std::vector<std::string>& modules) {
  for (const PlannedModules& entry : plan.modules) {
    if (entry.optional) continue;
    const bool used = std::any_of(modules.begin(), modules.end(), [&](const std::string& name) {
      return matches(name, entry.pattern);
    });
    if (!used) {
      fail<ValueError>(kWhere, "'", entry.pattern, "' fits no module; ",
                       near_names(entry.pattern, modules));
    }
  }
}

void check_heads(const TensorParallelPlan& plan, const Mesh& mesh) {
  const std::int64_t ranks = mesh.size(mesh.axis_index(plan.axis));
  for (const PlannedModules& entry : plan.modules) {
    const std::int64_t heads = entry.style.heads;
    if (heads % ranks == 0) continue;
    fail<ValueError>(kWhere, "'", entry.pattern, "' has ", heads, " heads, which the ", ranks,
                     " ranks of ", plan.axis, " in ", mesh,
                     " do not share evenly; choose an axis whose size divides ", heads);
  }
}

void check_sizes(const PlannedModules& entry, const NamedShape& tensor, const Placement& p) {
  const auto dim = static_cast<std::size_t>(p.dim());
  if (dim >= tensor.second.size()) {
    fail<ValueError>(kWhere, "'", entry.pattern, "' is to shard dimension ", dim, " of '",
                     tensor.first, "', which has ", tensor.second.size());
  }
  if (entry.style.heads == 0 || tensor.second[dim] % entry.style.heads == 0) return;
  fail<ValueError>(kWhere, "dimension ", dim, " of '", tensor.first, "' has length ",
                   tensor.second[dim], ", which is no multiple of the ", entry.style.heads,
                   " heads that the plan says it has");
}

/// A placement whose dimension does not count from the end.
Placement plain_dim(const Placement& p, std::size_t dims) {
  if (!p.is_shard()) return p;
  return Placement::strided_shard(normalize_dim(kWhere, p.dim(), dims), p.split());
}

const Placement* placement_of(const ModuleStyle& style, std::string_view parameter) {
  for (const auto& [pattern, placement] : style.parameters) {
    if (matches(parameter, pattern)) return &placement;
  }
  return nullptr;
}

std::optional<Placement> first_wanted(const TensorParallelPlan& plan, std::string_view module,
                                      std::optional<Placement> ModuleStyle::*which) {
  for (const PlannedModules& entry : plan.modules) {
    if (entry.style.*which && fits_end(module, entry.pattern)) return entry.style.*which;
  }
  return std::nullopt;
}

/// The same tensor, whose gradient is placed alike before it flows on: its partial values are added
/// up once, rather than in each op that follows.
at::Tensor with_placed_gradient(const at::Tensor& x, const std::string& axis, const Placement& p) {
  if (!x.requires_grad() || !at::GradMode::is_enabled()) return x;
  at::Tensor same = x.alias();
  same.register_hook([axis, p](const at::Tensor& gradient) {
    if (!has_layout(gradient)) return gradient;
    const Layout layout = layout_of(gradient);
    return layout.placement(axis) == p ? gradient : redistribute(gradient, layout.with(axis, p));
  });
  return same;
}

ModuleStyle style_of(std::vector<std::pair<std::string, Placement>> parameters,
                     const StyleOptions& options) {
  return {std::move(parameters), options.input, options.output, options.heads};
}

}  // namespace

ModuleStyle column(const StyleOptions& options) {
  return style_of({{"weight", Placement::shard(0)}, {"bias", Placement::shard(0)}}, options);
}

ModuleStyle row(const StyleOptions& options) {
  return style_of({{"weight", Placement::shard(1)}}, options);
}

ModuleStyle vocabulary(const StyleOptions& options) {
  return style_of({{"weight", Placement::shard(0)}}, options);
}

ModuleStyle sequence(int dim) { return {.input = Placement::shard(dim)}; }

ModuleStyle prepare_input(const Placement& placement) { return {.input = placement}; }

ModuleStyle prepare_output(const Placement& placement) { return {.output = placement}; }

LayoutPatterns layouts(const TensorParallelPlan& plan, const Mesh& mesh,
                       const std::vector<std::string>& modules,
                       const std::vector<NamedShape>& tensors) {
  if (plan.modules.empty()) return {};
  if (!mesh.has_axis(plan.axis)) {
    fail<ValueError>(kWhere, "the plan is for an axis ", plan.axis, ", which ", mesh,
                     " does not have; name one of its axes in the plan");
  }
  check_heads(plan, mesh);
  check_modules(plan, modules);

  LayoutPatterns result;
  std::vector<bool> used(plan.modules.size(), false);
  for (const NamedShape& tensor : tensors) {
    const std::size_t dot = tensor.first.rfind('.');
    if (dot == std::string::npos) continue;  // belongs to the model itself, which has no name
    const std::string module = tensor.first.substr(0, dot);
    for (std::size_t i = 0; i < plan.modules.size(); ++i) {
      const PlannedModules& entry = plan.modules[i];
      if (!matches(module, entry.pattern)) continue;
      const Placement* given = placement_of(entry.style, tensor.first.substr(dot + 1));
      if (given == nullptr) continue;
      if (given->is_shard()) check_sizes(entry, tensor, *given);
      result.emplace_back(tensor.first,
                          Layout::replicated(mesh).with(plan.axis, *given).placements_text());
      used[i] = true;
      break;
    }
  }
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const PlannedModules& entry = plan.modules[i];
    if (used[i] || entry.optional || entry.style.parameters.empty()) continue;
    fail<ValueError>(kWhere, "'", entry.pattern, "' lays out '", entry.style.parameters[0].first,
                     "', but no module that it fits has one which an earlier pattern leaves to it");
  }
  return result;
}

at::Tensor placed(const at::Tensor& x, std::string_view axis, const Placement& placement) {
  if (!has_layout(x)) return x;
  const Layout layout = layout_of(x);
  if (!layout.mesh().has_axis(axis)) return x;
  const Placement p = plain_dim(placement, static_cast<std::size_t>(x.dim()));
  if (layout.placement(axis) != p) return redistribute(x, layout.with(axis, p));
  return with_placed_gradient(x, std::string(axis), p);
}

std::optional<Placement> wanted_input(const TensorParallelPlan& plan, std::string_view module) {
  return first_wanted(plan, module, &ModuleStyle::input);
}

std::optional<Placement> wanted_output(const TensorParallelPlan& plan, std::string_view module) {
  return first_wanted(plan, module, &ModuleStyle::output);
}

at::Tensor placed_input(const at::Tensor& x, const TensorParallelPlan& plan,
                        std::string_view module) {
  const std::optional<Placement> wanted = wanted_input(plan, module);
  return wanted ? placed(x, plan.axis, *wanted) : x;
}

at::Tensor placed_output(const at::Tensor& x, const TensorParallelPlan& plan,
                         std::string_view module) {
  const std::optional<Placement> wanted = wanted_output(plan, module);
  return wanted ? placed(x, plan.axis, *wanted) : x;
}

std::vector<at::Tensor> placed_linears(const at::Tensor& x, const TensorParallelPlan& plan,
                                       std::string_view module,
                                       const std::vector<LinearParameters>& linears) {
  const std::optional<Placement> wanted = wanted_input(plan, module);
  if (wanted && wanted->is_replicate()) {
    return gathered_linears(x, linears, plan.axis, plan.overlap);
  }
  const at::Tensor input = wanted ? placed(x, plan.axis, *wanted) : x;
  std::vector<at::Tensor> out;
  for (const LinearParameters& l : linears) out.push_back(at::linear(input, l.weight, l.bias));
  return out;
}

at::Tensor placed_linear(const at::Tensor& x, const TensorParallelPlan& plan,
                         std::string_view module, const LinearParameters& linear) {
  const std::optional<Placement> wanted = wanted_output(plan, module);
  if (wanted && wanted->is_shard() && wanted->split() == 1) {
    return scattered_linear(x, linear, plan.axis, wanted->dim(), plan.overlap);
  }
  const at::Tensor y = at::linear(x, linear.weight, linear.bias);
  return wanted ? placed(y, plan.axis, *wanted) : y;
}

TensorParallelPlan llama_plan(const LlamaPlanOptions& options) {
  const Placement replicated = Placement::replicate();
  const Placement between = options.sequence_parallel ? Placement::shard(1) : replicated;
  const std::int64_t heads = options.heads;
  const std::int64_t groups = options.key_value_heads;
  TensorParallelPlan plan{
      options.axis,
      {
          {"embed|tok_embeddings|*embed_tokens", vocabulary({.output = between})},
          {"*.wq|*.q_proj", column({.heads = heads})},
          {"*.wk|*.wv|*.k_proj|*.v_proj", column({.heads = groups})},
          {"*.wo|*.o_proj", row({.output = between, .heads = heads})},
          {"*.w1|*.w3|*.gate_proj|*.up_proj", column(), /*optional=*/true},
          {"*.w2|*.down_proj", row({.output = between}), /*optional=*/true},
          {"head|output|lm_head",
           column({.input = replicated,
                   .output = options.loss_parallel ? std::nullopt : std::optional(replicated)})},
          {"*.attention|*.self_attn", prepare_input(replicated)},
          {"*.feed_forward|*.mlp", prepare_input(replicated), /*optional=*/true},
      },
      options.overlap};
  if (options.sequence_parallel) plan.modules.push_back({"*norm", sequence()});
  return plan;
}

}  // namespace intarsia
