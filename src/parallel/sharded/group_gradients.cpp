#include "parallel/sharded/group_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"

namespace intarsia {

Call GroupSite::call(LedgerTotals& sent) const {
  return {.tensor = name, .op = "fully_shard", .module = module_path(), .sent = &sent};
}

void GroupSite::charge(const std::vector<std::string>& axes, std::string transition,
                       const LedgerTotals& sent, std::optional<bool> backward) const {
  state.bill().charge_own("fully_shard", name, join(axes, ","), std::move(transition), sent,
                          backward);
}

GroupGradients::GroupGradients(const GroupSite& site, std::vector<Stored>& parameters,
                               const Mesh& mesh)
    : site_(site),
      parameters_(parameters),
      shard_(site.world.along(mesh, site.options.shard, "gradients")) {
  if (!site.options.replicate.empty()) {
    Comm comm = site.world.along(mesh, site.options.replicate, "gradients");
    if (comm.size() > 1) replicate_ = std::move(comm);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) add_to_lane(i, parameters[i]);
  for (Lane& lane : lanes_) lane.length += static_cast<std::int64_t>(lane.parameters.size());
  taken_.assign(parameters_.size(), false);
  arrived_.assign(parameters_.size(), false);
}

void GroupGradients::add_to_lane(std::size_t index, Stored& p) {
  const at::ScalarType dtype = p.stored->dtype;
  const at::ScalarType reduced =
      c10::isFloatingType(dtype) ? site_.options.reduce_dtype.value_or(dtype) : dtype;
  const auto lane =
      std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& l) { return l.dtype == reduced; });
  p.lane = static_cast<std::size_t>(lane - lanes_.begin());
  if (lane == lanes_.end()) lanes_.push_back({.dtype = reduced});
  p.gradient_slot = {lanes_[p.lane].length, p.longest};
  lanes_[p.lane].length += p.longest;
  lanes_[p.lane].parameters.push_back(index);
}

std::uint64_t GroupGradients::bytes() const {
  std::uint64_t out = 0;
  for (const Lane& lane : lanes_) {
    out += static_cast<std::uint64_t>(shard_.size() * lane.length * size_of(lane.dtype));
  }
  return out;
}

GroupGradients::Lane& GroupGradients::begin_lane(std::size_t index) {
  Lane& lane = lanes_[index];
  if (lane.partials.empty()) {
    const auto options = at::TensorOptions(site_.world.piece_device()).dtype(lane.dtype);
    for (std::size_t m = 0; m < site_.here.size(); ++m) {
      lane.partials.push_back(at::empty({shard_.size(), lane.length}, options));
    }
  }
  return lane;
}

void GroupGradients::take(std::size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const BelowAutograd below;
  const Stored& p = parameters_[index];
  if (gradient.requires_grad()) {
    fail<UnsupportedError>("fully_shard", "the gradient of '", p.name,
                           "' has a graph of its own (create_graph), which reducing it in a group "
                           "would lose; use torch::autograd::grad for gradients of gradients");
  }
  at::Tensor laid_out = is_ours(gradient)
                            ? gradient
                            : distribute(gradient, without_partial(p.used->layout), site_.world);
  const Spec spec = impl_of(laid_out).spec();
  Pieces pieces = impl_of(laid_out).pieces();
  if (spec->layout != p.gradient) {
    const PlanPointer plan = site_.state.plan(spec, p.gradient);
    if (!plan) {
      fail<ValueError>("fully_shard", "the gradient of '", p.name, "' is ", describe(laid_out),
                       ", from which no exact way leads to ", p.gradient,
                       "; reduce it to R before it gets there");
    }
    pieces = site_.state.move(spec, pieces, plan, {.op = "gradient", .implicit = false});
  }
  const Lane& lane = begin_lane(p.lane);
  for (std::size_t m = 0; m < site_.here.size(); ++m) {
    p.put_into_rows(m, pieces[m], taken_[index], lane.partials[m], p.gradient_slot.offset);
  }
  taken_[index] = true;
  arrived_[index] = true;
}

bool GroupGradients::is_ready() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!arrived_[i] && parameters_[i].gives_gradient()) return false;
  }
  return has_any();
}

bool GroupGradients::has_any() const {
  return std::find(taken_.begin(), taken_.end(), true) != taken_.end();
}

void GroupGradients::keep() {
  const at::NoGradGuard no_grad;
  arrived_.assign(parameters_.size(), false);
  kept_.assign(parameters_.size(), {});
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Stored& p = parameters_[i];
    const at::Tensor parameter = taken_[i] ? p.lock() : at::Tensor();
    if (!parameter.defined()) continue;
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    kept_[i] = {parameter.grad(), parameter.grad()._version()};
  }
}

void GroupGradients::drop_kept() {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const Kept& kept = kept_[i];
    const at::Tensor parameter = kept.gradient.defined() ? parameters_[i].lock() : at::Tensor();
    if (!parameter.defined()) continue;
    const at::Tensor& now = parameter.grad();
    const bool stays =
        now.defined() && now.is_same(kept.gradient) && now._version() == kept.version;
    if (!stays) taken_[i] = false;
  }
  kept_.clear();
}

void GroupGradients::forget() {
  kept_.clear();
  reducing_.clear();
  for (const Stored& p : parameters_) {
    if (at::Tensor parameter = p.lock(); parameter.defined()) parameter.mutable_grad().reset();
  }
  for (Lane& lane : lanes_) lane.partials.clear();
  taken_.assign(parameters_.size(), false);
  arrived_.assign(parameters_.size(), false);
}

void GroupGradients::reduce() {
  const at::NoGradGuard no_grad;
  const BelowAutograd below;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    Lane& lane = begin_lane(l);
    const std::int64_t marks = lane.length - static_cast<std::int64_t>(lane.parameters.size());
    for (const at::Tensor& rows : lane.partials) {
      rows.narrow(1, marks, lane.length - marks).fill_(1);
      for (std::size_t k = 0; k < lane.parameters.size(); ++k) {
        const std::size_t i = lane.parameters[k];
        if (taken_[i]) continue;
        const Slot& slot = parameters_[i].gradient_slot;
        rows.narrow(1, slot.offset, slot.length).zero_();
        rows.narrow(1, marks + static_cast<std::int64_t>(k), 1).zero_();
      }
    }
    std::vector<at::Tensor> flat;
    for (const at::Tensor& rows : lane.partials) flat.push_back(rows.view(-1));
    LedgerTotals sent;
    reducing_.push_back(
        reduce_scatter(shard_, flat, 0, Placement::partial(Reduction::sum), {}, site_.call(sent)));
    if (shard_.size() > 1) site_.charge(site_.options.shard, "P->S", sent, /*backward=*/true);
    lane.partials.clear();
  }
  taken_.assign(parameters_.size(), false);
  arrived_.assign(parameters_.size(), false);
}

bool GroupGradients::finish_reduction() {
  const at::NoGradGuard no_grad;
  const BelowAutograd below;
  bool any = false;
  for (std::size_t l = 0; l < reducing_.size(); ++l) {
    const Lane& lane = lanes_[l];
    std::vector<at::Tensor> reduced = reducing_[l].wait();
    if (replicate_) {
      LedgerTotals sent;
      reduced =
          all_reduce(*replicate_, reduced, Placement::partial(Reduction::sum), site_.call(sent))
              .wait();
      site_.charge(site_.options.replicate, "P->R", sent, /*backward=*/true);
    }
    if (reduced.empty()) continue;
    const auto count = static_cast<std::int64_t>(lane.parameters.size());
    at::Tensor marks = reduced[0].narrow(0, lane.length - count, count);
    marks =
        site_.world.simulated() ? at::ones({count}, at::kDouble) : marks.to(at::kCPU, at::kDouble);
    for (std::int64_t k = 0; k < count; ++k) {
      if (marks.const_data_ptr<double>()[k] == 0) continue;
      any = true;
      set_gradient(parameters_[lane.parameters[static_cast<std::size_t>(k)]], reduced);
    }
  }
  reducing_.clear();
  return any;
}

void GroupGradients::set_gradient(const Stored& p, const std::vector<at::Tensor>& reduced) {
  at::Tensor parameter = p.lock();
  if (!parameter.defined()) return;
  Pieces pieces;
  for (std::size_t m = 0; m < site_.here.size(); ++m) {
    at::Tensor piece = part_of(reduced[m], p.gradient_slot.offset, p.stored_sizes[m]);
    if (piece.scalar_type() != p.stored->dtype) piece = piece.to(p.stored->dtype);
    if (site_.options.offload && !site_.world.simulated()) piece = piece.to(at::kCPU);
    pieces.push_back(std::move(piece));
  }
  at::Tensor gradient = site_.make(p.stored, std::move(pieces));
  if (parameter.grad().defined()) {
    parameter.mutable_grad().add_(gradient);
  } else {
    parameter.mutable_grad() = std::move(gradient);
  }
}

}  // namespace intarsia
