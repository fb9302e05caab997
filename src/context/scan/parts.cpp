#include "context/scan/parts.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"

namespace intarsia::context {
namespace {

constexpr std::string_view kWhere = "scan";

using Tensors = ScanPart::Tensors;
using torch::autograd::Node;

at::Tensor leaf_of(const at::Tensor& piece, bool wanted) {
  return piece.detach().requires_grad_(wanted && at::GradMode::is_enabled());
}

/// Adds to `grads` those of `leaves` through the graph that ends in `made`.
void add_grads(Tensors& grads, const Tensors& leaves, const Tensors& made,
               const Tensors& made_grads) {
  Tensors ends;
  Tensors end_grads;
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!made[i].requires_grad() || !made_grads[i].defined()) continue;
    ends.push_back(made[i]);
    end_grads.push_back(made_grads[i]);
  }
  Tensors wanted;
  for (const at::Tensor& t : leaves) {
    if (t.requires_grad()) wanted.push_back(t);
  }
  if (ends.empty() || wanted.empty()) return;
  const Tensors some =
      torch::autograd::grad(ends, wanted, end_grads, /*retain_graph=*/true, /*create_graph=*/false,
                            /*allow_unused=*/true);
  for (std::size_t i = 0, next = 0; i < leaves.size(); ++i) {
    if (!leaves[i].requires_grad()) continue;
    const at::Tensor& grad = some[next++];
    if (grad.defined()) grads[i] = grads[i].defined() ? grads[i] + grad : grad;
  }
}

}  // namespace

ScanPart::ScanPart(const ScanLayer& layer, std::int64_t dim, const Tensors& along,
                   const Tensors& others, const std::vector<bool>& wanted, Runs runs)
    : layer_(&layer), dim_(dim), runs_(std::move(runs)) {
  for (std::size_t i = 0; i < along.size(); ++i) along_.push_back(leaf_of(along[i], wanted[i]));
  for (std::size_t i = 0; i < others.size(); ++i) {
    others_.push_back(leaf_of(others[i], wanted[along.size() + i]));
  }
}

Tensors ScanPart::leaves() const {
  Tensors out = along_;
  out.insert(out.end(), others_.begin(), others_.end());
  out.insert(out.end(), befores_.begin(), befores_.end());
  return out;
}

/// In the place of an empty piece, one position of zeros: it tells sizes.
Tensors ScanPart::run_inputs(std::size_t run) const {
  Tensors out;
  for (const at::Tensor& t : along_) {
    if (is_empty()) {
      std::vector<std::int64_t> sizes = t.sizes().vec();
      sizes[static_cast<std::size_t>(dim_)] = 1;
      out.push_back(at::zeros(sizes, t.options()));
    } else {
      out.push_back(t.narrow(dim_, runs_[run].offset, runs_[run].positions.size()));
    }
  }
  return out;
}

/// Every graph must begin at our leaves: gradients of other tensors would be lost.
void ScanPart::check(const Tensors& made, std::string_view what) const {
  std::unordered_set<Node*> known;
  for (const at::Tensor& t : leaves()) {
    if (t.requires_grad()) known.insert(torch::autograd::impl::grad_accumulator(t).get());
  }
  std::vector<Node*> open;
  for (const at::Tensor& t : made) {
    if (has_layout(t)) {
      fail<ValueError>(kWhere, what, " gave ", describe(t),
                       "; a layer's functions get plain pieces and give plain tensors: pass what "
                       "they use besides to scan, as `others`");
    }
    if (t.requires_grad()) {
      open.push_back(torch::autograd::impl::gradient_edge(t).function.get());
    }
  }
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !known.insert(node).second) continue;
    if (node->num_outputs() == 0) {
      fail<ValueError>(kWhere, what,
                       " uses a tensor that wants a gradient and is not among its arguments: the "
                       "gradient would be lost; pass it to scan, as one of `others`");
    }
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
}

const std::vector<ScanState>& ScanPart::make_states() {
  for (std::size_t r = 0; r < std::max<std::size_t>(runs_.size(), 1); ++r) {
    ScanLayer::Summary summary = layer_->summary(run_inputs(r), others_);
    check(summary.state, "`summary`");
    check(summary.kept, "`summary`");
    kept_.push_back(std::move(summary.kept));
    states_.push_back(std::move(summary.state));
    const ScanState& state = states_.back();
    if (state.empty())
      fail<ValueError>(kWhere, "`summary` gave a state of ", state.size(),
                       " tensors; pass at least one on to the ranks behind");
    for (const at::Tensor& t : state) {
      if (t.scalar_type() == state[0].scalar_type()) continue;
      fail<ValueError>(kWhere, "the tensors of a state have one dtype; `summary` gave ",
                       describe(state[0]), " and ", describe(t));
    }
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (state.size() == states_[0].size() && state[i].sizes() == states_[0][i].sizes()) continue;
      fail<ValueError>(kWhere, "the sizes of a state do not depend on the run; `summary` gave ",
                       describe(states_[0][std::min(i, states_[0].size() - 1)]), " and ",
                       describe(state[i]));
    }
  }
  return states_;
}

Tensors ScanPart::make_outputs(const StateShape& shape, const at::Tensor& befores) {
  std::vector<Tensors> by_output;
  for (std::size_t r = 0; r < std::max<std::size_t>(runs_.size(), 1); ++r) {
    std::optional<ScanState> before;
    if (!is_empty()) {
      befores_.push_back(leaf_of(befores.narrow(0, static_cast<std::int64_t>(r), 1), true));
      if (runs_[r].positions.begin > 0) before = shape.unpacked(befores_.back());
    }
    const Tensors made = layer_->outputs(run_inputs(r), others_, kept_[r], before);
    check(made, "`outputs`");
    const std::int64_t positions = is_empty() ? 1 : runs_[r].positions.size();
    for (const at::Tensor& t : made) {
      if (t.dim() > dim_ && t.size(dim_) == positions) continue;
      fail<ValueError>(kWhere, "`outputs` gave ", describe(t), " for a run of ", positions,
                       " positions; it has them in dimension ", dim_);
    }
    by_output.resize(made.size());
    for (std::size_t i = 0; i < made.size(); ++i) by_output[i].push_back(made[i]);
  }
  for (const Tensors& list : by_output) {
    const at::Tensor all = list.size() == 1 ? list[0] : at::cat(list, dim_);
    outputs_.push_back(is_empty() ? all.narrow(dim_, 0, 0) : all);
  }
  Tensors out;
  for (const at::Tensor& t : outputs_) out.push_back(t.detach());
  return out;
}

at::Tensor ScanPart::before_grads(const StateShape& shape, const Tensors& output_grads) {
  const Tensors all = leaves();
  grads_.assign(all.size(), {});
  add_grads(grads_, all, outputs_, output_grads);
  Tensors rows;
  for (std::size_t i = along_.size() + others_.size(); i < all.size(); ++i) {
    rows.push_back(grads_[i].defined() ? grads_[i] : at::zeros_like(all[i]));
  }
  return rows.empty() ? at::zeros({0, shape.numel()}, states_[0][0].options()) : at::cat(rows);
}

Tensors ScanPart::input_grads(const StateShape& shape, const at::Tensor& state_grads) const {
  Tensors grads = grads_;
  const Tensors all = leaves();
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const auto row = static_cast<std::int64_t>(r);
    add_grads(grads, all, states_[r], shape.unpacked(state_grads.narrow(0, row, 1)));
  }
  grads.resize(along_.size() + others_.size());
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) grads[i] = at::zeros_like(all[i]);
  }
  return grads;
}

}  // namespace intarsia::context
