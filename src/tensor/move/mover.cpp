#include "tensor/move/mover.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "intarsia/error.h"
#include "tensor/core/neutral.h"
#include "tensor/core/pieces.h"
#include "tensor/move/bill.h"
#include "tensor/move/exchange.h"
#include "world/collectives/flat.h"
#include "world/collectives/pending.h"
#include "world/transport/reductions.h"

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

void check_pieces(const World& world, at::TensorList pieces, const Plan& plan) {
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

// ---- steps that send nothing -----------------------------------------------------------------

/// Copies what a rank keeps of its old piece to its place in the new one.
void bring(const at::Tensor& made, const at::Tensor& old, const MemberRoute& m) {
  for (const Block& b : m.to[0].blocks) {
    block_of(made, b.sizes, m.after, b.in_new).copy_(block_of(old, b.sizes, m.before, b.in_old));
  }
}

/// The block of a piece, whatever its strides: of an expanded one, no more is made than the block.
at::Tensor narrowed(at::Tensor piece, const Block& block, const Shape& sizes) {
  const Shape strides = strides_of(sizes);
  std::int64_t rest = block.in_old;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (block.sizes[d] != sizes[d]) {
      piece = piece.narrow(static_cast<std::int64_t>(d), rest / strides[d], block.sizes[d]);
    }
    rest %= strides[d];
  }
  return piece;
}

at::Tensor slice(const at::Tensor& piece, const MemberRoute& m) {
  if (in_order(m.to, m.before, &Block::in_old)) return flat::plain(piece).view(to_ref(m.after));
  if (m.to[0].blocks.size() == 1) {
    const at::Tensor old = piece._is_zerotensor() ? flat::plain(piece) : piece;
    const at::Tensor made = flat::plain(narrowed(old, m.to[0].blocks[0], m.before));
    return block_of(made, m.after, m.after, 0);  // dimensions of one element as others have them
  }
  const at::Tensor old = flat::plain(piece);
  const at::Tensor made = at::empty(to_ref(m.after), old.options());
  bring(made, old, m);
  return made;
}

/// The partial value that a rank makes of what it holds: its part, with neutral values around it.
/// Along an axis that was replicated, the first rank keeps the value and others get a neutral one.
at::Tensor make_partial(const at::Tensor& piece, const MemberRoute& m, const Step& step,
                        const Coordinate& at) {
  at::Tensor partial = piece;
  if (m.before != m.after || m.to[0].count != elements(m.after)) {
    const at::Tensor old = flat::plain(piece);
    partial = neutral_piece(m.after, step.after, old.options());
    bring(partial, old, m);
  }
  for (const std::int8_t a : step.axes) {
    const auto axis = static_cast<std::size_t>(a);
    if (step.before.placement(axis).is_replicate() && step.after.placement(axis).is_partial() &&
        at[axis] > 0) {
      partial = neutral_partial(partial, step.after.placement(axis));
    }
  }
  return partial;
}

Tensors run_local(const World& world, const StepRoute& s, Tensors pieces) {
  if (s.step->kind == StepKind::relabel) return pieces;
  std::size_t m = 0;
  for (const std::int64_t rank : world.hosted()) {
    const auto at = s.step->before.mesh().coordinate_of(rank);
    if (!at) continue;
    pieces[m] = s.step->kind == StepKind::slice
                    ? slice(pieces[m], s.members[m])
                    : make_partial(pieces[m], s.members[m], *s.step, *at);
    ++m;
  }
  return pieces;
}

/// Whether ranks reduce equal parts that follow each other in the old piece: what backends call a
/// reduce-scatter.
bool is_plain_scatter(const StepRoute& s) {
  if (s.step->kind != StepKind::reduce_scatter || s.partial_count != s.comm->size()) return false;
  return std::all_of(s.members.begin(), s.members.end(), [](const MemberRoute& m) {
    return m.sends_in_place && m.lands_in_place &&
           std::all_of(m.to.begin(), m.to.end(),
                       [&](const Part& p) { return p.count == m.to[0].count; });
  });
}

Pending start_step(BufferPool& pool, const StepRoute& s, Tensors pieces,
                   const std::function<Tensors(Tensors)>& then, const CallSite& site) {
  if (s.step->kind == StepKind::all_reduce) {
    std::int64_t bytes = 0;
    for (const at::Tensor& p : pieces) bytes += static_cast<std::int64_t>(p.nbytes());
    const auto held = std::make_shared<BufferPool::Hold>(pool.hold(3 * bytes));
    Pending reduced = all_reduce(*s.comm, pieces, s.how, site.call, site.where);
    return after(std::move(reduced), [held, then](Tensors made) { return then(std::move(made)); });
  }
  if (pieces.empty()) return ready({});
  if (is_plain_scatter(s) && s.step->chunks == 1 &&
      flat::scatters_reduced(*s.comm, s.how, pieces[0].scalar_type())) {
    std::int64_t bytes = 0;
    for (at::Tensor& p : pieces) {
      p = flat::plain(p).view(-1);
      bytes += 3 * static_cast<std::int64_t>(p.nbytes());
    }
    const auto held = std::make_shared<BufferPool::Hold>(pool.hold(bytes));
    return after(reduce_scatter(*s.comm, pieces, 0, s.how, {}, site.call, site.where),
                 [&s, held, then](Tensors made) {
                   for (std::size_t m = 0; m < made.size(); ++m) {
                     made[m] = made[m].view(to_ref(s.members[m].after));
                   }
                   return then(std::move(made));
                 });
  }
  return start_exchange(
      pool, {{&s, std::move(pieces)}},
      [then](std::vector<Tensors> made) { return then(std::move(made[0])); }, site);
}

/// Whether two steps can be one call.
bool go_together(const StepRoute& a, const StepRoute& b, const Tensors& x, const Tensors& y) {
  if (a.step->axes != b.step->axes || a.step->before.mesh() != b.step->before.mesh()) return false;
  if (a.step->chunks != 1 || b.step->chunks != 1) return false;
  if (!x.empty() && x[0].scalar_type() != y[0].scalar_type()) return false;
  const bool reduces = a.step->kind == StepKind::all_reduce;
  if (reduces != (b.step->kind == StepKind::all_reduce)) return false;
  if (reduces) return a.how == b.how;
  // A norm is sent as powers, perhaps in another dtype.
  return a.how.norm_order() == b.how.norm_order() && a.even == b.even;
}

/// Many tensors reduced as one.
std::vector<Tensors> all_reduce_together(BufferPool& pool, const StepRoute& s,
                                         const std::vector<Tensors>& pieces, const CallSite& site) {
  std::vector<Tensors> out(pieces.size());
  Tensors joined;
  std::int64_t bytes = 0;
  for (std::size_t m = 0; m < pieces[0].size(); ++m) {
    Tensors flat;
    for (const Tensors& p : pieces) flat.push_back(flat::plain(p[m]).view(-1));
    joined.push_back(at::cat(flat));
    bytes += static_cast<std::int64_t>(joined.back().nbytes());
  }
  const BufferPool::Hold held = pool.hold(3 * bytes);
  const Tensors reduced = all_reduce(*s.comm, joined, s.how, site.call, site.where).wait();
  for (std::size_t m = 0; m < reduced.size(); ++m) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor& like = pieces[i][m];
      // Results are tensors of their own: freeing one must free its memory.
      out[i].push_back(reduced[m].narrow(0, at, like.numel()).view(like.sizes()).clone());
      at += like.numel();
    }
  }
  return out;
}

/// Whether the pieces given to a step are read after it was started: where it sends what it was
/// given and not a buffer that it has filled.
bool reads_later(const StepRoute& s) {
  return s.step->kind != StepKind::all_reduce && s.step->chunks == 1 &&
         (s.even || std::any_of(s.members.begin(), s.members.end(),
                                [](const MemberRoute& m) { return m.sends_in_place; }));
}

}  // namespace

std::shared_ptr<const Route> Mover::route(const std::shared_ptr<const Plan>& plan) {
  if (world_.closed())
    fail<WorldError>("redistribute", "the world is closed; close it after the last step");
  constexpr std::uintptr_t kAlignment = 64;
  auto& slot = routes_[reinterpret_cast<std::uintptr_t>(plan.get()) / kAlignment % routes_.size()];
  {
    const std::scoped_lock lock(mutex_);
    if (slot && slot->plan == plan) return slot;
  }
  auto made = make_route(world_, plan);
  const std::scoped_lock lock(mutex_);
  slot = made;
  return made;
}

Pending Mover::start(const PiecesToMove& tensor, const StartOptions& options, const CallSite& site,
                     std::span<LedgerTotals> sent) {
  check_pieces(world_, tensor.pieces, *tensor.plan);
  const std::shared_ptr<const Route> way = route(tensor.plan);
  std::size_t last = 0;  // one beyond the last step that sends
  for (std::size_t i = 0; i < way->steps.size(); ++i) {
    if (way->steps[i].step->communicates()) last = i + 1;
  }
  Tensors now = tensor.pieces;
  Call call = site.call;
  const auto step_site = [&](std::size_t i) -> CallSite {
    if (!sent.empty()) call.sent = &sent[i];
    return {call, site.where};
  };
  for (std::size_t i = 0; i + 1 < last; ++i) {
    const StepRoute& s = way->steps[i];
    if (s.step->communicates()) {
      now = start_step(
                *pool_, s, std::move(now), [](Tensors t) { return t; }, step_site(i))
                .wait();
    } else {
      now = run_local(world_, s, std::move(now));
    }
  }
  const auto rest = [way, last, &world = world_](Tensors pieces) {
    for (std::size_t i = last; i < way->steps.size(); ++i) {
      pieces = run_local(world, way->steps[i], std::move(pieces));
    }
    return pieces;
  };
  if (last == 0) {
    now = rest(std::move(now));
    return ready(options.source_stays ? std::move(now) : apart_from(tensor.pieces, std::move(now)));
  }
  if (!options.source_stays && reads_later(way->steps[last - 1])) {
    now = apart_from(tensor.pieces, std::move(now));
  }
  return start_step(*pool_, way->steps[last - 1], std::move(now), rest, step_site(last - 1));
}

std::vector<Tensors> Mover::run(std::vector<Moving> moving, const CallSite& site) {
  if (moving.empty() || moving[0].old.empty()) return std::vector<Tensors>(moving.size());
  std::vector<Tensors> made;
  const auto keep = [&made](std::vector<Tensors> all) {
    made = std::move(all);
    return Tensors();
  };
  start_exchange(*pool_, std::move(moving), keep, site).wait();
  return made;
}

std::vector<Tensors> Mover::run(std::vector<PiecesToMove> tensors, const CallSite& site,
                                std::vector<StepsSent>& sent) {
  std::vector<std::shared_ptr<const Route>> ways;
  for (const PiecesToMove& t : tensors) {
    check_pieces(world_, t.pieces, *t.plan);
    ways.push_back(route(t.plan));
    sent.emplace_back(t.plan->steps.size());
  }
  std::vector<std::size_t> next(tensors.size(), 0);
  while (true) {
    // Every tensor goes on by itself as long as it sends nothing.
    std::vector<std::size_t> waiting;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& steps = ways[i]->steps;
      while (next[i] < steps.size() && !steps[next[i]].step->communicates()) {
        tensors[i].pieces = run_local(world_, steps[next[i]++], std::move(tensors[i].pieces));
      }
      if (next[i] < steps.size()) waiting.push_back(i);
    }
    if (waiting.empty()) break;
    const std::size_t first = waiting[0];
    const StepRoute& step = ways[first]->steps[next[first]];
    std::erase_if(waiting, [&](std::size_t i) {
      return i != first &&
             !go_together(step, ways[i]->steps[next[i]], tensors[first].pieces, tensors[i].pieces);
    });
    std::vector<Tensors> made;
    LedgerTotals together;
    Call call = site.call;
    call.sent = &together;
    if (step.step->kind == StepKind::all_reduce) {
      std::vector<Tensors> pieces;
      for (const std::size_t i : waiting) pieces.push_back(std::move(tensors[i].pieces));
      made = all_reduce_together(*pool_, step, pieces, {call, site.where});
    } else {
      std::vector<Moving> moving;
      for (const std::size_t i : waiting) {
        moving.push_back({&ways[i]->steps[next[i]], std::move(tensors[i].pieces)});
      }
      made = run(std::move(moving), {call, site.where});
    }
    std::vector<std::uint64_t> weights;
    for (const std::size_t i : waiting) weights.push_back(ways[i]->steps[next[i]].bytes);
    const std::vector<LedgerTotals> shares = divided(together, weights);
    for (std::size_t w = 0; w < waiting.size(); ++w) {
      sent[waiting[w]][next[waiting[w]]] = shares[w];
      tensors[waiting[w]].pieces = std::move(made[w]);
      ++next[waiting[w]];
    }
  }
  std::vector<Tensors> out;
  for (PiecesToMove& t : tensors) out.push_back(std::move(t.pieces));
  return out;
}

}  // namespace intarsia
