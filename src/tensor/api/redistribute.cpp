#include "intarsia/redistribute.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "plan/report.h"
#include "tensor/core/neutral.h"
#include "tensor/core/ours.h"
#include "tensor/move/mover.h"
#include "tensor/move/relayout.h"
#include "tensor/move/state.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

}  // namespace

Pending start_redistribute(World& world, at::TensorList pieces,
                           const std::shared_ptr<const Plan>& plan, const Call& call,
                           std::source_location where, const StartOptions& options) {
  return TensorState::of(world).mover().start({pieces.vec(), plan}, options, {call, where});
}

Tensors redistribute_pieces(World& world, at::TensorList pieces,
                            const std::shared_ptr<const Plan>& plan, const Call& call,
                            std::source_location where) {
  return start_redistribute(world, pieces, plan, call, where, {.source_stays = true}).wait();
}

std::vector<Tensors> redistribute_pieces(World& world, const std::vector<PiecesToMove>& tensors,
                                         const Call& call, std::source_location where) {
  std::vector<StepsSent> sent;
  return TensorState::of(world).mover().run(tensors, {call, where}, sent);
}

// ---- tensors ---------------------------------------------------------------------------------

namespace {

Tensors pieces_of(const DistributedImpl& impl) {
  return Tensors(impl.pieces().begin(), impl.pieces().end());
}

Pieces to_pieces(const Tensors& list) { return Pieces(list.begin(), list.end()); }

constexpr std::string_view kTogether = "redistribute_together";

}  // namespace

MovingTensor::MovingTensor(at::Tensor from, std::shared_ptr<const Plan> plan, Pending pending)
    : from_(std::move(from)), plan_(std::move(plan)), pending_(std::move(pending)) {}

at::Tensor MovingTensor::wait() {
  const BelowAutograd below;
  return moved_tensor(impl_of(from_), plan_->to, to_pieces(pending_.wait()));
}

MovingTensor start_redistribute(const at::Tensor& tensor, const Layout& layout,
                                const StartOptions& options) {
  constexpr std::string_view where = "start_redistribute";
  DistributedImpl& impl = ours(where, tensor);
  const PlanPointer plan = plan_to(where, impl, layout);
  const BelowAutograd below;
  TensorState& state = impl.state();
  const std::string name = impl.spec().to_string();
  const Call call{.tensor = name, .op = where, .module = module_path()};
  StepsSent sent(plan->steps.size());
  Pending moving = state.mover().start({pieces_of(impl), plan}, options,
                                       {call, std::source_location::current()}, sent);
  state.bill().charge(impl.spec(), *state.mover().route(plan), {.op = where, .implicit = false},
                      sent);
  return {tensor, plan, std::move(moving)};
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
    moves.push_back({pieces_of(impl), plan_to(kTogether, impl, layouts[i])});
  }
  if (moves.empty()) return {};
  TensorState& state = impl_of(tensors[0]).state();
  std::vector<StepsSent> sent;
  const auto made = state.mover().run(moves,
                                      {Call{.tensor = {}, .op = kTogether, .module = module_path()},
                                       std::source_location::current()},
                                      sent);
  std::vector<at::Tensor> out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    state.bill().charge(impl_of(tensors[i]).spec(), *state.mover().route(moves[i].plan),
                        {.op = kTogether, .implicit = false}, sent[i]);
    out.push_back(moved_tensor(impl_of(tensors[i]), layouts[i], to_pieces(made[i])));
  }
  return out;
}

namespace {

constexpr std::string_view kBetween = "redistribute_between";

/// A tensor that goes to another mesh. A partial one is reduced where it is, and made partial again
/// where it goes.
struct MoveBetween {
  DistributedImpl* impl = nullptr;
  Layout layout;  ///< asked for
  Spec from;
  Spec to;
  Pieces held;

  MoveBetween(const at::Tensor& tensor, const Layout& layout)
      : impl(&ours(kBetween, tensor)), layout(layout), held(impl->pieces()) {
    check_dims(kBetween, layout, impl->spec()->sizes.size());
    from = impl->spec().with(without_partial(impl->spec()->layout));
    to = from.with(without_partial(layout));
  }
};

/// The pieces that a tensor's ranks bring to the exchange.
Tensors pieces_to_send(const MoveBetween& move, const RouteBetween& way) {
  World& world = move.impl->world();
  const auto options = at::TensorOptions().dtype(move.from->dtype).device(world.piece_device());
  const Mesh& mesh = move.from->layout.mesh();
  Tensors pieces;
  std::size_t next = 0;
  for (std::size_t m = 0; m < way.ranks.size(); ++m) {
    pieces.push_back(mesh.contains(way.ranks[m]) ? move.held[next++] : at::empty({0}, options));
  }
  return pieces;
}

/// How many elements of it are sent to other ranks.
std::uint64_t elements_to_others(const RouteBetween& way) {
  std::uint64_t sum = 0;
  for (const MemberRoute& route : way.route.members) {
    for (std::size_t j = 0; j < route.to.size(); ++j) {
      if (j != route.me) sum += static_cast<std::uint64_t>(route.to[j].count);
    }
  }
  return sum;
}

at::Tensor tensor_there(const MoveBetween& move, const RouteBetween& way, const Tensors& made) {
  Pieces pieces;
  for (std::size_t m = 0; m < made.size(); ++m) {
    if (move.to->layout.mesh().contains(way.ranks[m])) {
      pieces.push_back(in_order(made[m], *move.to));
    }
  }
  TensorState& state = move.impl->state();
  if (move.to->layout != move.layout) {
    pieces = state.move(move.to, pieces, state.plan(move.to, move.layout),
                        {.op = kBetween, .implicit = false});
  }
  return make_tensor(*move.impl, move.to.with(move.layout), std::move(pieces));
}

}  // namespace

at::Tensor redistribute_between(const at::Tensor& tensor, const Layout& layout) {
  return redistribute_between(Tensors{tensor}, {layout})[0];
}

std::vector<at::Tensor> redistribute_between(const std::vector<at::Tensor>& tensors,
                                             const std::vector<Layout>& layouts) {
  if (tensors.size() != layouts.size()) {
    fail<ValueError>(kBetween, tensors.size(), " tensors and ", layouts.size(),
                     " layouts were given");
  }
  const BelowAutograd below;
  std::vector<MoveBetween> moves;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    moves.emplace_back(tensors[i], layouts[i]);
    if (&moves[i].impl->world() != &moves[0].impl->world()) {
      fail<ValueError>(kBetween, "tensors 0 and ", i, " belong to different worlds");
    }
  }
  for (MoveBetween& move : moves) {
    TensorState& state = move.impl->state();
    if (move.from == move.impl->spec()) continue;
    move.held = state.move(*move.impl, state.plan(move.impl->spec(), move.from->layout),
                           {.op = kBetween, .implicit = false});
  }
  Tensors out(tensors.size());
  for (std::size_t first = 0; first < moves.size(); ++first) {
    if (out[first].defined()) continue;
    // All tensors of a dtype go together, over the ranks of all their meshes.
    std::vector<std::size_t> same;
    std::vector<Mesh> meshes;
    for (std::size_t i = first; i < moves.size(); ++i) {
      if (moves[i].from->dtype != moves[first].from->dtype) continue;
      same.push_back(i);
      for (const Spec* spec : {&moves[i].from, &moves[i].to}) {
        const Mesh& mesh = (*spec)->layout.mesh();
        if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
      }
    }
    const std::vector<std::int64_t> everyone = ranks_of(meshes);
    World& world = moves[first].impl->world();
    std::vector<Moving> moving;
    std::vector<std::shared_ptr<const RouteBetween>> ways;
    for (const std::size_t i : same) {
      const MoveBetween& move = moves[i];
      ways.push_back(make_route_between(world, move.from->layout, move.to->layout, move.from->sizes,
                                        everyone));
      moving.push_back({&ways.back()->route, pieces_to_send(move, *ways.back())});
    }
    const std::string name =
        same.size() == 1 ? moves[first].impl->spec().to_string() : concat(same.size(), " tensors");
    LedgerTotals together;
    const Call call{.tensor = name, .op = kBetween, .module = module_path(), .sent = &together};
    TensorState& state = moves[first].impl->state();
    const auto made = state.mover().run(std::move(moving), {call, std::source_location::current()});
    std::vector<std::uint64_t> weights;
    for (const auto& way : ways) weights.push_back(elements_to_others(*way));
    const std::vector<LedgerTotals> shares = divided(together, weights);
    for (std::size_t k = 0; k < same.size(); ++k) {
      const MoveBetween& move = moves[same[k]];
      state.bill().charge_own(kBetween, move.impl->spec().to_string(),
                              concat(move.from->layout.mesh(), "->", move.to->layout.mesh()),
                              "S->S", shares[k]);
      out[same[k]] = tensor_there(moves[same[k]], *ways[k], made[k]);
    }
  }
  return out;
}

std::string explain(const at::Tensor& tensor, const Layout& layout) {
  DistributedImpl& impl = ours("explain", tensor);
  PlanReport report(*plan_to("explain", impl, layout));
  const auto dtype = dtype_of(impl.spec()->dtype);
  if (dtype) report.dtype = to_text(*dtype);
  return to_text(report);
}

MoveMemory move_memory(World& world) {
  const BufferPool& pool = TensorState::of(world).mover().pool();
  return {pool.live(), pool.high_water(), pool.idle()};
}

void reset_move_memory(World& world) { TensorState::of(world).mover().pool().reset_high_water(); }

at::Tensor local_piece(const at::Tensor& full, const Layout& layout, const Coordinate& at) {
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
      piece = neutral_partial(piece, layout.placement(a));
  }
  return piece;
}

}  // namespace intarsia
