// Muon: momentum in the parameters' layouts, orthogonalization of full matrices.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/optim.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "tensor/move/route.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

void check_matrix(std::string_view where, const at::Tensor& t) {
  if (t.dim() == 2 && at::isFloatingType(t.scalar_type())) return;
  fail<ValueError>(where, "takes matrices of real numbers, not ", describe(t),
                   "; give other parameters to another optimizer, such as AdamW");
}

/// Of a plain matrix.
at::Tensor newton_schulz(const at::Tensor& matrix, const NewtonSchulz& options) {
  const auto [a, b, c] = options.coefficients;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(options.dtype);
  if (x.numel() == 0) return x;
  if (tall) x = x.t();
  x = x / x.norm().clamp_min(options.epsilon);
  for (std::int64_t i = 0; i < options.steps; ++i) {
    const at::Tensor gram = x.mm(x.t());
    const at::Tensor update = at::addmm(gram, gram, gram, b, c);
    x = at::addmm(x, update, x, a);
  }
  return (tall ? x.t() : x).contiguous();
}

/// Multiplications of one step, up to a factor.
std::int64_t cost_of(const at::Tensor& matrix) {
  return matrix.numel() * std::min(matrix.size(0), matrix.size(1));
}

/// A full tensor on one rank is replicated on a mesh of that rank.
Layout owned_by(std::int64_t rank) { return Layout::replicated(Mesh({{"owner", 1}}, rank)); }

at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!has_layout(parameter)) return gradient;
  if (!has_layout(gradient)) return distribute(gradient, layout_of(parameter), world_of(parameter));
  return redistribute(gradient, layout_of(parameter));
}

double scaled_rate(const MuonOptions& options, const at::Tensor& parameter) {
  const auto rows = static_cast<double>(parameter.size(0));
  const auto columns = static_cast<double>(parameter.size(1));
  switch (options.scale()) {
    case MuonScale::original:
      return options.lr() * std::sqrt(std::max(1.0, rows / columns));
    case MuonScale::match_rms_adamw:
      break;
  }
  constexpr double kLikeAdamW = 0.2;
  return options.lr() * kLikeAdamW * std::sqrt(std::max(rows, columns));
}

void check_options(const MuonOptions& options) {
  const auto refuse_below_0 = [](std::string_view name, double value) {
    if (!(value >= 0)) fail<ValueError>("Muon", name, " is ", value, "; give at least 0");
  };
  refuse_below_0("lr", options.lr());
  refuse_below_0("weight_decay", options.weight_decay());
  refuse_below_0("momentum", options.momentum());
  refuse_below_0("steps", static_cast<double>(options.iteration().steps));
}

}  // namespace

std::vector<std::int64_t> balanced_owners(std::span<const std::int64_t> costs, std::int64_t ranks) {
  if (ranks < 1) fail<ValueError>("balanced_owners", ranks, " ranks; give at least 1");
  return balanced_owners(costs, std::vector<Mesh>(costs.size(), Mesh({{"ranks", ranks}})));
}

std::vector<std::int64_t> balanced_owners(std::span<const std::int64_t> costs,
                                          std::span<const Mesh> meshes) {
  if (costs.size() != meshes.size()) {
    fail<ValueError>("balanced_owners", costs.size(), " costs and ", meshes.size(),
                     " meshes were given");
  }
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::map<std::int64_t, std::int64_t> load;
  std::vector<std::pair<Mesh, std::vector<std::int64_t>>> known;  // the ranks of meshes
  std::vector<std::int64_t> owners(costs.size());
  for (const std::size_t i : order) {
    auto mesh = std::find_if(known.begin(), known.end(),
                             [&](const auto& entry) { return entry.first == meshes[i]; });
    if (mesh == known.end()) mesh = known.insert(mesh, {meshes[i], ranks_of(meshes.subspan(i, 1))});
    owners[i] =
        *std::min_element(mesh->second.begin(), mesh->second.end(),
                          [&](std::int64_t a, std::int64_t b) { return load[a] < load[b]; });
    load[owners[i]] += costs[i];
  }
  return owners;
}

std::vector<at::Tensor> orthogonalize(const std::vector<at::Tensor>& matrices,
                                      const NewtonSchulz& options) {
  const at::NoGradGuard no_grad;
  Tensors out(matrices.size());
  std::vector<std::size_t> places;
  Tensors pieces;
  std::vector<std::int64_t> costs;
  std::vector<Mesh> meshes;
  std::vector<Layout> layouts;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    check_matrix("orthogonalize", matrices[i]);
    if (!has_layout(matrices[i])) {
      out[i] = newton_schulz(matrices[i], options);
      continue;
    }
    places.push_back(i);
    // Cast before it travels: half the bytes, and the same numbers.
    pieces.push_back(matrices[i].to(options.dtype));
    layouts.push_back(layout_of(matrices[i]));
    meshes.push_back(layouts.back().mesh());
    costs.push_back(cost_of(matrices[i]));
  }
  if (places.empty()) return out;
  std::vector<Layout> owned;
  for (const std::int64_t rank : balanced_owners(costs, meshes)) owned.push_back(owned_by(rank));
  Tensors full_matrices = redistribute_between(pieces, owned);
  for (std::size_t k = 0; k < places.size(); ++k) {
    World& world = world_of(full_matrices[k]);
    Tensors mine;
    for (const at::Tensor& matrix : locals(full_matrices[k])) {
      mine.push_back(newton_schulz(matrix, options));
    }
    full_matrices[k] = from_locals(
        mine, owned[k], world, {.shape = full_matrices[k].sizes().vec(), .dtype = options.dtype});
  }
  const Tensors results = redistribute_between(full_matrices, layouts);
  for (std::size_t k = 0; k < places.size(); ++k) out[places[k]] = results[k];
  return out;
}

void muon_step(const std::vector<MuonTensors>& groups) {
  struct Update {
    at::Tensor parameter;
    at::Tensor value;
    const MuonOptions* options;
  };
  const at::NoGradGuard no_grad;
  std::vector<Update> updates;
  for (const MuonTensors& group : groups) {
    check_options(group.options);
    if (group.gradients.size() != group.parameters.size() ||
        group.momenta.size() != group.parameters.size()) {
      fail<ValueError>("muon_step", group.parameters.size(), " parameters, ",
                       group.gradients.size(), " gradients and ", group.momenta.size(),
                       " momenta were given; give one of each");
    }
    const double momentum = group.options.momentum();
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      check_matrix("Muon", group.parameters[i]);
      const at::Tensor gradient = laid_out_like(group.parameters[i], group.gradients[i]);
      at::Tensor buffer = group.momenta[i];
      buffer.lerp_(gradient, 1 - momentum);
      const at::Tensor update = group.options.nesterov() ? gradient.lerp(buffer, momentum) : buffer;
      updates.push_back({group.parameters[i], update, &group.options});
    }
  }
  std::vector<bool> done(updates.size());
  for (std::size_t first = 0; first < updates.size(); ++first) {
    if (done[first]) continue;
    const NewtonSchulz& iteration = updates[first].options->iteration();
    std::vector<Update> same;
    Tensors matrices;
    for (std::size_t i = first; i < updates.size(); ++i) {
      if (done[i] || updates[i].options->iteration() != iteration) continue;
      done[i] = true;
      same.push_back(updates[i]);
      matrices.push_back(updates[i].value);
    }
    const Tensors orthogonal = orthogonalize(matrices, iteration);
    for (std::size_t k = 0; k < same.size(); ++k) {
      const MuonOptions& options = *same[k].options;
      at::Tensor parameter = same[k].parameter;
      parameter.mul_(1 - options.lr() * options.weight_decay());
      parameter.add_(orthogonal[k], -scaled_rate(options, parameter));
    }
  }
}

Muon::Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const MuonOptions& defaults)
    : Optimizer(groups, std::make_unique<MuonOptions>(defaults)) {
  check_options(defaults);
  for (const auto& group : param_groups()) {
    for (const at::Tensor& p : group.params()) check_matrix("Muon", p);
  }
}

Muon::Muon(std::vector<at::Tensor> parameters, const MuonOptions& defaults)
    : Muon({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

at::Tensor Muon::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  std::vector<MuonTensors> groups;
  for (auto& group : param_groups()) {
    MuonTensors tensors;
    tensors.options = static_cast<const MuonOptions&>(group.options());
    for (const at::Tensor& p : group.params()) {
      if (!p.grad().defined()) continue;
      auto& state = state_[p.unsafeGetTensorImpl()];
      if (!state) {
        auto made = std::make_unique<MuonParamState>();
        made->momentum_buffer(at::zeros_like(p));
        state = std::move(made);
      }
      tensors.parameters.push_back(p);
      tensors.gradients.push_back(p.grad());
      tensors.momenta.push_back(static_cast<MuonParamState&>(*state).momentum_buffer());
    }
    groups.push_back(std::move(tensors));
  }
  muon_step(groups);
  return loss;
}

}  // namespace intarsia
