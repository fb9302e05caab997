#include "context/attend/exchange.h"

#include <ATen/ATen.h>

#include "base/text.h"
#include "context/attend/layouts.h"
#include "intarsia/collectives.h"
#include "intarsia/communication.h"
#include "tensor/core/places.h"
#include "tensor/move/state.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia::context {
namespace {

constexpr std::string_view kOp = "attention";

/// Pieces go round in a ring: the one of rank i to rank i + 1.
class Ring {
 public:
  Ring(World& world, const Spec& spec, const std::vector<std::string>& axes,
       std::string_view purpose, std::vector<std::int64_t> lengths)
      : world_(world),
        comm_(world.along(spec->layout.mesh(), axes, purpose)),
        text_(spec.to_string()),
        axes_(join(axes)),
        lengths_(std::move(lengths)) {
    for (std::int64_t i = 0; i < comm_.size(); ++i) next_.push_back((i + 1) % comm_.size());
  }

  /// Sends what members have after `step` rounds to their neighbours.
  Pending pass_on(const std::vector<at::Tensor>& pieces, std::size_t step) const {
    LedgerTotals sent;
    const Call call{.tensor = text_, .op = kOp, .module = module_path(), .sent = &sent};
    Pending moving = permute(comm_, pieces, next_, shapes(pieces, step), call);
    TensorState::of(world_).bill().charge_own(kOp, text_, axes_, "ring", sent);
    return moving;
  }

 private:
  /// What each rank of the group sends; in lockstep pieces say it themselves.
  std::vector<std::vector<std::int64_t>> shapes(const std::vector<at::Tensor>& pieces,
                                                std::size_t step) const {
    if (world_.in_lockstep() || pieces.empty()) return {};
    std::vector<std::vector<std::int64_t>> out;
    const std::size_t n = lengths_.size();
    for (std::size_t i = 0; i < n; ++i) {
      out.push_back(pieces[0].sizes().vec());
      out.back()[kSequence] = lengths_[(i + n - step % n) % n];
    }
    return out;
  }

  World& world_;
  Comm comm_;
  std::string text_;
  std::string axes_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> next_;
};

std::vector<std::int64_t> lengths_of(const std::vector<Range>& places) {
  std::vector<std::int64_t> out;
  for (const Range& range : places) out.push_back(range.size());
  return out;
}

}  // namespace

Exchange::Exchange(World& world, const Spec& spec, const SequenceOrder& order,
                   AttentionSchedule::Keys schedule,
                   const std::function<std::vector<Range>(std::size_t place)>& needs)
    : world_(&world), spec_(spec), order_(order) {
  const Layout& layout = spec->layout;
  const Places places(layout.mesh(), layout.axes_of(kSequence));
  axes_ = places.names();
  for (std::size_t i = 0; i < places.count(); ++i) {
    const Boxes held = boxes(layout, spec->sizes, places.at(i));
    places_.push_back(held.runs(kSequence).empty() ? Range{} : held.runs(kSequence)[0]);
  }
  for (const Coordinate& at : hosted_coordinates(world, layout.mesh())) {
    members_.push_back(places.of(at));
  }
  is_ring_ = schedule == AttentionSchedule::Keys::ring && places_.size() > 1;
  if (is_ring_ || places_.size() == 1) return;
  for (std::size_t i = 0; i < places_.size(); ++i) needs_.push_back(needs(i));
  halo_.emplace(world, std::string(kOp), spec, kSequence,
                [&](const Coordinate& at) { return needs_[places.of(at)]; });
}

Runs Exchange::window_runs(std::size_t place) const {
  Runs out;
  std::int64_t offset = 0;
  for (const Range& range : needs_[place]) {
    const Runs some = runs_at(order_, range, offset);
    out.insert(out.end(), some.begin(), some.end());
    offset += range.size();
  }
  return out;
}

std::size_t Exchange::source(std::size_t member, std::size_t step) const {
  return (members_[member] + places_.size() - step) % places_.size();
}

void Exchange::forward(const Pieces& pieces, const Use& use) const {
  if (is_ring_) return ring_forward(pieces, use);
  std::optional<Pending> coming;
  if (halo_) coming.emplace(halo_->start_fetch(pieces));
  for (std::size_t m = 0; m < pieces.size(); ++m) use(m, pieces[m], runs_of(members_[m]));
  if (!coming) return;
  const auto& windows = coming->wait();
  for (std::size_t m = 0; m < pieces.size(); ++m) use(m, windows[m], window_runs(members_[m]));
}

Pieces Exchange::backward(const Pieces& pieces, const GradUse& use) const {
  if (is_ring_) return ring_backward(pieces, use);
  std::optional<Pending> coming;
  if (halo_) coming.emplace(halo_->start_fetch(pieces));
  Pieces own;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    own.push_back(use(m, pieces[m], runs_of(members_[m])));
  }
  if (!coming) return own;
  const auto& windows = coming->wait();
  Pieces of_windows;
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    of_windows.push_back(use(m, windows[m], window_runs(members_[m])));
  }
  const Pieces others = halo_->give_back(of_windows);
  for (std::size_t m = 0; m < own.size(); ++m) own[m].add_(others[m]);
  return own;
}

void Exchange::ring_forward(const Pieces& pieces, const Use& use) const {
  const Ring ring(*world_, spec_, axes_, {}, lengths_of(places_));
  std::vector<at::Tensor> here(pieces.begin(), pieces.end());
  for (std::size_t step = 0; step < places_.size(); ++step) {
    std::optional<Pending> coming;
    if (step + 1 < places_.size()) coming.emplace(ring.pass_on(here, step));
    for (std::size_t m = 0; m < here.size(); ++m) use(m, here[m], runs_of(source(m, step)));
    if (coming) here = coming->wait();
  }
}

Pieces Exchange::ring_backward(const Pieces& pieces, const GradUse& use) const {
  const Ring ring(*world_, spec_, axes_, {}, lengths_of(places_));
  // Gradients of a piece follow it round, one step behind, and end where it began.
  const Ring back(*world_, spec_, axes_, "gradients of attention", lengths_of(places_));
  std::vector<at::Tensor> here(pieces.begin(), pieces.end());
  std::optional<Pending> behind;
  for (std::size_t step = 0; step < places_.size(); ++step) {
    std::optional<Pending> coming;
    if (step + 1 < places_.size()) coming.emplace(ring.pass_on(here, step));
    std::vector<at::Tensor> grads;
    for (std::size_t m = 0; m < here.size(); ++m) {
      grads.push_back(use(m, here[m], runs_of(source(m, step))));
    }
    if (behind) {
      const auto& so_far = behind->wait();
      for (std::size_t m = 0; m < grads.size(); ++m) grads[m].add_(so_far[m]);
    }
    behind.emplace(back.pass_on(grads, step));
    if (coming) here = coming->wait();
  }
  const auto& done = behind->wait();
  return Pieces(done.begin(), done.end());
}

}  // namespace intarsia::context
