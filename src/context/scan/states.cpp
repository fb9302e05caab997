#include "context/scan/states.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/communication.h"
#include "tensor/move/state.h"

namespace intarsia::context {
namespace {

at::Tensor as_leaf(const at::Tensor& row) {
  return row.detach().requires_grad_(at::GradMode::is_enabled());
}

/// The gradients of `of` through the graph that ends in `made`; zeros where nothing leads there.
std::vector<at::Tensor> through(const at::Tensor& made, const std::vector<at::Tensor>& of,
                                const at::Tensor& grad) {
  std::vector<at::Tensor> out(of.size());
  if (made.requires_grad()) {
    out = torch::autograd::grad({made}, of, {grad}, /*retain_graph=*/true, /*create_graph=*/false,
                                /*allow_unused=*/true);
  }
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (!out[i].defined()) out[i] = at::zeros_like(of[i]);
  }
  return out;
}

}  // namespace

StateShape::StateShape(const ScanState& like) {
  for (const at::Tensor& t : like) sizes.push_back(t.sizes().vec());
}

std::int64_t StateShape::numel() const {
  std::int64_t out = 0;
  for (const auto& each : sizes) out += c10::multiply_integers(each);
  return out;
}

at::Tensor StateShape::packed(const ScanState& state) const {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& t : state) parts.push_back(t.reshape({-1}));
  return at::cat(parts).unsqueeze(0);
}

ScanState StateShape::unpacked(const at::Tensor& row) const {
  ScanState out;
  std::int64_t begin = 0;
  for (const auto& each : sizes) {
    const std::int64_t numel = c10::multiply_integers(each);
    out.push_back(row.reshape({-1}).narrow(0, begin, numel).view(each));
    begin += numel;
  }
  return out;
}

std::vector<at::Tensor> StateSender::send(
    std::string transition,
    const std::function<Pending(const Comm& comm, const Call& call)>& begin) const {
  LedgerTotals sent;
  const Call call{.tensor = text, .op = "scan", .module = module_path(), .sent = &sent};
  Pending moving = begin(comm(), call);
  TensorState::of(*world).bill().charge_own("scan", text, join(axes), std::move(transition), sent);
  return moving.wait();
}

// ---- gather ----------------------------------------------------------------------------------

StateRows GatheredStates::forward(const StateSender& to, const ScanRuns& runs,
                                  const std::vector<StateShape>& shapes, const ScanLayer& layer,
                                  const StateRows& own) {
  std::vector<std::int64_t> first;  // row of the first run of each place
  std::int64_t rows = 0;
  std::vector<std::int64_t> counts;
  for (const std::size_t count : runs.counts) {
    first.push_back(rows);
    counts.push_back(static_cast<std::int64_t>(count));
    rows += counts.back();
  }
  for (std::size_t m = 0; m < own.size(); ++m) {
    lengths_.insert(lengths_.end(), counts.begin(), counts.end());
  }
  joined_ = own;
  if (to.sends()) {
    joined_ = to.send("gather", [&](const Comm& comm, const Call& call) {
      return all_gather(comm, own, 0, lengths_, call);
    });
  }
  for (std::size_t m = 0; m < own.size(); ++m) {
    joined_[m] = as_leaf(joined_[m]);
    const std::size_t place = runs.members[m];
    std::vector<at::Tensor> mine(runs.counts[place]);
    std::size_t left = mine.size();
    std::optional<ScanState> so_far;
    for (const ScanRuns::Run& run : runs.all) {
      if (left == 0) break;
      if (run.place == place) {
        mine[run.index] =
            so_far ? shapes[m].packed(*so_far) : at::zeros_like(own[m].narrow(0, 0, 1));
        --left;
      }
      const std::int64_t row = first[run.place] + static_cast<std::int64_t>(run.index);
      const ScanState state = shapes[m].unpacked(joined_[m].narrow(0, row, 1));
      so_far = so_far ? layer.combine(*so_far, state) : state;
    }
    made_.push_back(mine.empty() ? own[m] : at::cat(mine));
  }
  StateRows out;
  for (const at::Tensor& t : made_) out.push_back(t.detach());
  return out;
}

StateRows GatheredStates::backward(const StateSender& to, const StateRows& grads) const {
  std::vector<at::Tensor> of_all;
  for (std::size_t m = 0; m < grads.size(); ++m) {
    of_all.push_back(through(made_[m], {joined_[m]}, grads[m])[0]);
  }
  if (!to.sends()) return of_all;
  return to.send("reduce_scatter", [&](const Comm& comm, const Call& call) {
    return reduce_scatter(comm, of_all, 0, Placement::partial(), lengths_, call);
  });
}

// ---- doubling --------------------------------------------------------------------------------

std::vector<at::Tensor> PassedStates::pass(const StateSender& to,
                                           const std::vector<at::Tensor>& rows,
                                           std::int64_t distance) const {
  return to.send("pass", [&](const Comm& comm, const Call& call) {
    const std::int64_t n = comm.size();
    std::vector<std::int64_t> next;
    for (std::int64_t i = 0; i < n; ++i) next.push_back((i + distance + n) % n);
    return permute(comm, rows, next, {}, call);
  });
}

StateRows PassedStates::forward(const StateSender& to, const ScanRuns& runs,
                                const std::vector<StateShape>& shapes, const ScanLayer& layer,
                                const StateRows& own) {
  const std::size_t n = runs.counts.size();
  std::vector<bool> known(n);  // by place, whether it has what stands for some run
  for (std::size_t i = 0; i < n; ++i) known[i] = runs.counts[i] > 0;
  std::vector<at::Tensor> here;
  for (std::size_t m = 0; m < own.size(); ++m) {
    has_run_.push_back(own[m].size(0) > 0);
    here.push_back(has_run_[m] ? own[m] : at::zeros({1, own[m].size(1)}, own[m].options()));
  }
  const auto step = [&](std::size_t distance, bool is_first) {
    Step& now = steps_.emplace_back();
    now.distance = static_cast<std::int64_t>(distance);
    const std::vector<at::Tensor> came = pass(to, here, now.distance);
    std::vector<bool> knew = known;
    const auto comes_to = [&](std::size_t i) { return i >= distance && knew[i - distance]; };
    for (std::size_t m = 0; m < here.size(); ++m) {
      const std::size_t place = runs.members[m];
      Made& made = now.by_member.emplace_back();
      if (is_first || (comes_to(place) && !knew[place])) {
        made.how = Made::How::taken;
        here[m] = came[m];
      } else if (comes_to(place)) {
        made = {Made::How::combined, as_leaf(came[m]), as_leaf(here[m]), {}};
        const StateShape& shape = shapes[m];
        made.made =
            shape.packed(layer.combine(shape.unpacked(made.came), shape.unpacked(made.had)));
        here[m] = made.made.detach();
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      known[i] = is_first ? comes_to(i) : knew[i] || comes_to(i);
    }
  };
  step(1, true);  // from the next step on, what a rank has is of ranks before it
  for (std::size_t distance = 1; distance + 1 < n; distance *= 2) step(distance, false);
  for (std::size_t m = 0; m < here.size(); ++m) {
    if (!has_run_[m]) here[m] = here[m].narrow(0, 0, 0);
  }
  return here;
}

StateRows PassedStates::backward(const StateSender& to, const StateRows& grads) const {
  std::vector<at::Tensor> here;
  for (std::size_t m = 0; m < grads.size(); ++m) {
    here.push_back(has_run_[m] ? grads[m] : at::zeros({1, grads[m].size(1)}, grads[m].options()));
  }
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    std::vector<at::Tensor> back;
    for (std::size_t m = 0; m < here.size(); ++m) {
      const Made& made = step->by_member[m];
      if (made.how == Made::How::kept) {
        back.push_back(at::zeros_like(here[m]));
      } else if (made.how == Made::How::taken) {
        back.push_back(std::exchange(here[m], at::zeros_like(here[m])));
      } else {
        const auto of = through(made.made, {made.came, made.had}, here[m]);
        back.push_back(of[0]);
        here[m] = of[1];
      }
    }
    const std::vector<at::Tensor> came = pass(to, back, -step->distance);
    for (std::size_t m = 0; m < here.size(); ++m) here[m] = here[m] + came[m];
  }
  for (std::size_t m = 0; m < here.size(); ++m) {
    if (!has_run_[m]) here[m] = here[m].narrow(0, 0, 0);
  }
  return here;
}

// ---- both ------------------------------------------------------------------------------------

StatesBefore::StatesBefore(StateSender sender, ScanRuns runs, std::vector<StateShape> shapes,
                           ScanLayer layer, ScanSchedule schedule)
    : sender_(std::move(sender)),
      runs_(std::move(runs)),
      shapes_(std::move(shapes)),
      layer_(std::move(layer)) {
  if (schedule == ScanSchedule::doubling) way_.emplace<PassedStates>();
}

StateRows StatesBefore::forward(const StateRows& own) {
  return std::visit([&](auto& way) { return way.forward(sender_, runs_, shapes_, layer_, own); },
                    way_);
}

StateRows StatesBefore::backward(const StateRows& grads) const {
  return std::visit([&](const auto& way) { return way.backward(sender_, grads); }, way_);
}

}  // namespace intarsia::context
