#include "intarsia/redistribute.h"

#include <ATen/ATen.h>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "plan/report.h"
#include "tensor/decide.h"
#include "tensor/mover.h"
#include "tensor/neutral.h"
#include "tensor/ours.h"
#include "tensor/state.h"
#include "world/dtype.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

void check_pieces(World& world, at::TensorList pieces, const Plan& plan) {
  constexpr std::string_view where = "redistribute_pieces";
  const Mesh& mesh = plan.from.mesh();
  std::size_t m = 0;
  for (const std::int64_t rank : world.hosted()) {
    const auto at = mesh.coordinate_of(rank);
    if (!at) continue;
    const Shape expected = local_shape(plan.from, plan.shape, *at);
    if (m < pieces.size() &&
        pieces[m].sizes() != at::IntArrayRef(expected.begin(), expected.size())) {
      fail<ValueError>(where, "the piece of rank ", rank, " has sizes (", join(pieces[m].sizes()),
                       "), but ", plan.from, " gives it (", join(expected), ") of (",
                       join(plan.shape), ")");
    }
    ++m;
  }
  if (m != pieces.size()) {
    fail<ValueError>(where, "this process hosts ", m, " ranks of ", mesh, ", but ", pieces.size(),
                     " pieces were given");
  }
}

}  // namespace

Pending start_redistribute(World& world, at::TensorList pieces,
                           const std::shared_ptr<const Plan>& plan, const Call& call,
                           std::source_location where) {
  check_pieces(world, pieces, *plan);
  return TensorState::of(world).mover().start({plan, pieces.vec()}, {call, where});
}

Tensors redistribute_pieces(World& world, at::TensorList pieces,
                            const std::shared_ptr<const Plan>& plan, const Call& call,
                            std::source_location where) {
  return start_redistribute(world, pieces, plan, call, where).wait();
}

std::vector<Tensors> redistribute_pieces(World& world, const std::vector<PiecesToMove>& tensors,
                                         const Call& call, std::source_location where) {
  std::vector<Mover::Job> jobs;
  for (const PiecesToMove& t : tensors) {
    check_pieces(world, t.pieces, *t.plan);
    jobs.push_back({t.plan, t.pieces});
  }
  return TensorState::of(world).mover().run(std::move(jobs), {call, where});
}

// ---- tensors ---------------------------------------------------------------------------------

namespace {

PlanPointer plan_for(std::string_view where, DistributedImpl& impl, const Layout& layout) {
  const Spec& spec = impl.spec();
  if (layout.mesh() != spec->layout.mesh()) {
    fail<ValueError>(where, "the tensor lies on ", spec->layout.mesh(), ", not on ", layout.mesh(),
                     "; redistribute_between() moves it there");
  }
  PlanPointer plan = impl.state().plan(spec, layout);
  if (!plan) {
    fail<ValueError>(where, "no exact way leads from ", spec->layout, " to ", layout,
                     ": partial values of different kinds; go through R");
  }
  return plan;
}

Tensors pieces_of(const DistributedImpl& impl) {
  return Tensors(impl.pieces().begin(), impl.pieces().end());
}

at::Tensor made_of(const DistributedImpl& like, const Layout& layout, const Tensors& made) {
  const Spec spec = like.spec().with(layout);
  Pieces pieces;
  for (std::size_t m = 0; m < made.size(); ++m) {
    // Writing to the result must not reach the tensor.
    const bool shares = m < like.pieces().size() && made[m].is_alias_of(like.pieces()[m]);
    pieces.push_back(in_order(shares ? made[m].clone() : made[m], *spec));
  }
  return make_tensor(like.shared_world(), like.state(), spec, std::move(pieces));
}

constexpr std::string_view kTogether = "redistribute_together";

}  // namespace

MovingTensor::MovingTensor(at::Tensor from, std::shared_ptr<const Plan> plan, Pending pending)
    : from_(std::move(from)), plan_(std::move(plan)), pending_(std::move(pending)) {}

at::Tensor MovingTensor::wait() {
  const BelowAutograd below;
  return made_of(impl_of(from_), plan_->to, pending_.wait());
}

MovingTensor start_redistribute(const at::Tensor& tensor, const Layout& layout) {
  constexpr std::string_view where = "start_redistribute";
  DistributedImpl& impl = ours(where, tensor);
  const PlanPointer plan = plan_for(where, impl, layout);
  const BelowAutograd below;
  TensorState& state = impl.state();
  state.charge(impl.spec(), *state.mover().route(plan), {.op = where, .implicit = false});
  const std::string name = impl.spec().to_string();
  return {tensor, plan,
          start_redistribute(impl.world(), pieces_of(impl), plan,
                             Call{.tensor = name, .op = where, .module = module_path()})};
}

std::vector<at::Tensor> redistribute_together(const std::vector<at::Tensor>& tensors,
                                              const std::vector<Layout>& layouts) {
  if (tensors.size() != layouts.size()) {
    fail<ValueError>(kTogether, tensors.size(), " tensors and ", layouts.size(),
                     " layouts were given");
  }
  std::vector<PiecesToMove> moves;
  const BelowAutograd below;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    DistributedImpl& impl = ours(kTogether, tensors[i]);
    if (&impl.world() != &impl_of(tensors[0]).world()) {
      fail<ValueError>(kTogether, "tensors 0 and ", i, " belong to different worlds");
    }
    const PlanPointer plan = plan_for(kTogether, impl, layouts[i]);
    TensorState& state = impl.state();
    state.charge(impl.spec(), *state.mover().route(plan), {.op = kTogether, .implicit = false});
    moves.push_back({pieces_of(impl), plan});
  }
  if (moves.empty()) return {};
  const auto made =
      redistribute_pieces(impl_of(tensors[0]).world(), moves,
                          Call{.tensor = {}, .op = kTogether, .module = module_path()});
  std::vector<at::Tensor> out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    out.push_back(made_of(impl_of(tensors[i]), layouts[i], made[i]));
  }
  return out;
}

at::Tensor redistribute_between(const at::Tensor& tensor, const Layout& layout) {
  constexpr std::string_view where = "redistribute_between";
  DistributedImpl& impl = ours(where, tensor);
  World& world = impl.world();
  check_dims(where, layout, impl.spec()->sizes.size());
  const BelowAutograd below;
  const Reason reason{.op = where, .implicit = false};
  TensorState& state = impl.state();
  // Terms are reduced where they are, and made again where they go.
  const Layout from = without_partial(impl.spec()->layout);
  const Layout to = without_partial(layout);
  Pieces held = impl.pieces();
  if (from != impl.spec()->layout) held = state.move(impl, state.plan(impl.spec(), from), reason);
  const Spec spec = impl.spec().with(from);
  const auto way = make_route_between(world, from, to, spec->sizes);
  const auto options = at::TensorOptions().dtype(spec->dtype).device(world.device());
  Tensors pieces;
  std::size_t next = 0;
  std::uint64_t sent = 0;
  for (std::size_t m = 0; m < way->ranks.size(); ++m) {
    const bool has = from.mesh().contains(way->ranks[m]);
    pieces.push_back(has ? held[next++] : at::empty({0}, options));
    const MemberRoute& route = way->route.members[m];
    for (std::size_t j = 0; j < route.to.size(); ++j) {
      if (j != route.me) {
        sent += static_cast<std::uint64_t>(route.to[j].count) * c10::elementSize(spec->dtype);
      }
    }
  }
  const std::string name = impl.spec().to_string();
  state.charge_own(where, name, concat(from.mesh(), "->", to.mesh()), "S->S", sent);
  const Tensors made =
      state.mover().run(*way, std::move(pieces),
                        {Call{.tensor = name, .op = where, .module = module_path()},
                         std::source_location::current()});
  Pieces arrived;
  const Spec there = spec.with(to);
  for (std::size_t m = 0; m < made.size(); ++m) {
    if (to.mesh().contains(way->ranks[m])) arrived.push_back(in_order(made[m], *there));
  }
  if (to != layout) arrived = state.move(there, arrived, state.plan(there, layout), reason);
  return make_tensor(impl.shared_world(), state, there.with(layout), std::move(arrived));
}

std::string explain(const at::Tensor& tensor, const Layout& layout) {
  DistributedImpl& impl = ours("explain", tensor);
  PlanReport report(*plan_for("explain", impl, layout));
  const auto dtype = dtype_of(impl.spec()->dtype);
  if (dtype) report.dtype = to_text(*dtype);
  return to_text(report);
}

MoveMemory move_memory(World& world) {
  const BufferPool& pool = TensorState::of(world).mover().pool();
  return {pool.live(), pool.high_water(), pool.idle()};
}

void reset_move_memory(World& world) { TensorState::of(world).mover().pool().reset_high_water(); }

at::Tensor cut_piece(const at::Tensor& full, const Layout& layout, const Coordinate& at) {
  const Boxes held = boxes(layout, std::span(full.sizes().data(), full.sizes().size()), at);
  at::Tensor piece = full;
  for (std::size_t d = 0; d < held.dims(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    Tensors parts;
    for (const Range& r : held.runs(d)) parts.push_back(piece.narrow(dim, r.begin, r.size()));
    piece = parts.empty()       ? piece.narrow(dim, 0, 0)
            : parts.size() == 1 ? parts[0]
                                : at::cat(parts, dim);
  }
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).is_partial() && at[a] > 0)
      piece = neutral_term(piece, layout.placement(a));
  }
  return piece;
}

}  // namespace intarsia
