#include "plan/price.h"

#include <algorithm>

#include "intarsia/boxes.h"

namespace intarsia {
namespace {

constexpr std::int64_t kMostChunks = 64;

/// Whether a rank can make a partial value of its part, with what adds nothing around it, and lose
/// no bit.
bool spreads_exactly(const Placement& p) {
  return p.reduction() != Reduction::avg && p.reduction() != Reduction::norm;
}

}  // namespace

Prices::Prices(RoleTable& roles, AxisSets& sets, const Layout& from, const Layout& to,
               std::span<const std::int64_t> shape, const PlanOptions& options)
    : roles_(roles),
      sets_(sets),
      comparer_(roles, sets, shape),
      from_(from),
      to_(to),
      shape_(shape),
      options_(options) {
  for (std::size_t a = 0; a < from.mesh().axes(); ++a) {
    if (roles_.begin()[a].kind == Role::Kind::partial) begin_partial_ |= bit(a);
    if (roles_.goal()[a].kind == Role::Kind::partial) goal_partial_ |= bit(a);
  }
}

/// Whether partial values along these axes can be made exactly.
bool Prices::spreads(Mask axes) const {
  bool exact = true;
  for_each_bit(axes, [&](std::size_t a) { exact = exact && spreads_exactly(to_.placement(a)); });
  return exact;
}

/// Whether partial values along these axes can be reduced together.
bool Prices::one_kind(Mask axes) const {
  const auto first = static_cast<std::size_t>(std::countr_zero(axes));
  bool same = true;
  for_each_bit(axes,
               [&](std::size_t a) { same = same && from_.placement(a) == from_.placement(first); });
  return same;
}

// ---- prices ----------------------------------------------------------------------------------

Price Prices::price(const State& x, const State& y) {
  const Mask reduced = x.partial_axes & ~y.partial_axes;
  const Mask made = y.partial_axes & ~x.partial_axes;
  const Changes c = comparer_.changes(x, y);
  const double b = sets_.piece_bytes(x.sharding_axes);
  const double a = sets_.piece_bytes(y.sharding_axes);
  const double copy = sets_.topology().copy_bandwidth;
  Price out;
  out.group = c.left | reduced;
  if (made != 0) {
    // A rank makes a partial value of what it holds; where that was a part, with what adds nothing
    // around it.
    if (reduced != 0 || (c.left & ~made) != 0 || (made & ~goal_partial_) != 0 || !spreads(c.left)) {
      return out;
    }
    return {StepKind::make_partial, 0, 1, a / copy};
  }
  if (out.group == 0) {
    out.seconds = x.sharding_roles == y.sharding_roles ? 0 : a / copy;
    return out;
  }
  if (reduced != 0 && ((reduced & ~begin_partial_) != 0 || !one_kind(reduced))) return out;
  out = exchange(x, y, c, reduced);
  const double n = sets_.ranks(out.group);
  const Link& l = sets_.link(out.group);
  if (c.left == 0 && x.sharding_roles == y.sharding_roles) {
    const double seconds = l.overhead + 2 * (n - 1) * l.latency +
                           2 * b * (n - 1) / n * sets_.topology().all_reduce / l.bandwidth +
                           b / copy;
    if (seconds <= out.seconds) return {StepKind::all_reduce, out.group, 1, seconds};
  } else if (reduced == 0 && (c.left & c.same) == 0 &&
             (y.sharding_roles & ~x.sharding_roles) == 0) {
    const double seconds = l.overhead + (n - 1) * l.latency +
                           (a - b) * sets_.topology().all_gather / l.bandwidth +
                           (comparer_.joins_rows(x, c.left) ? 0 : a / copy);
    if (seconds <= out.seconds) return {StepKind::all_gather, out.group, 1, seconds};
  }
  return out;
}

Price Prices::exchange(const State& x, const State& y, const Changes& c, Mask reduced) {
  const Link& l = sets_.link(c.left | reduced);
  const Mask irregular = roles_.irregular() != 0 ? comparer_.apart_by_irregular(x, y) : 0;
  const bool keeps_none = irregular != 0 || (x.conflicts & y.sharding_roles) != 0;
  const double a = sets_.piece_bytes(y.sharding_axes);
  const double held = keeps_none ? 0
                                 : sets_.piece_bytes(x.sharding_axes) * sets_.ranks(c.same) /
                                       sets_.ranks(y.sharding_axes);
  const double partials = sets_.ranks(reduced);
  const double received = partials * a - held;
  const double from = partials * comparer_.sources(x, y.sharding_roles, c.left, irregular);
  Price out;
  out.group = c.left | reduced;
  out.seconds = l.overhead + std::max(1.0, from - 1) * l.latency + received / l.bandwidth +
                (partials > 1 ? 3 * partials * a : 2 * received) / sets_.topology().copy_bandwidth;
  out.kind = (reduced & ~y.sharding_axes) != 0 ? StepKind::exchange_partials
             : reduced != 0                    ? StepKind::reduce_scatter
             : from == 1 && comparer_.is_one_to_one(x, y, c.left, irregular) ? StepKind::permute
                                                                             : StepKind::all_to_all;
  return out;
}

// ---- memory ----------------------------------------------------------------------------------

std::int64_t Prices::piece(State& s) const {
  if (s.piece_bytes < 0) {
    s.piece_bytes = intarsia::piece_bytes(roles_.layout(s), shape_, options_.element_size);
  }
  return s.piece_bytes;
}

std::int64_t Prices::peak(const Price& p, State& x, State& y) const {
  return piece(x) + piece(y) + staging(p, x, y);
}

/// What a step needs besides the old and the new piece, when it is sent at once.
std::int64_t Prices::staging_at_once(const Price& p, State& x, State& y) const {
  switch (p.kind) {
    case StepKind::slice:
    case StepKind::relabel:
    case StepKind::make_partial:
      return 0;
    case StepKind::all_gather:
      if (!is_even(x)) return sent_and_received(p, x, y);
      return comparer_.joins_rows(x, p.group) ? 0 : piece(y);
    case StepKind::all_reduce:
      return piece(y);
    default:
      break;
  }
  const Mask reduced = x.partial_axes & ~y.partial_axes;
  const std::int64_t buffers = sent_and_received(p, x, y);
  // Partial values that come in several parts are put together before they are reduced.
  const bool in_parts = reduced != 0 && (p.group & ~reduced) != 0;
  return buffers + (in_parts ? static_cast<std::int64_t>(sets_.ranks(reduced)) * piece(y) : 0);
}

/// Whether all ranks hold equally much.
bool Prices::is_even(State& s) const {
  return static_cast<double>(piece(s)) * sets_.ranks(s.sharding_axes) == sets_.piece_bytes(0);
}

/// Buffers of what an exchange sends and receives.
std::int64_t Prices::sent_and_received(const Price& p, State& x, State& y) const {
  const auto partials = static_cast<std::int64_t>(sets_.ranks(x.partial_axes & ~y.partial_axes));
  const auto copies = static_cast<std::int64_t>(sets_.ranks(p.group & ~y.sharding_axes));
  return copies * piece(x) + partials * piece(y);
}

/// What a step needs besides the two pieces. In parts, each rank's part may be one element
/// longer than its share.
std::int64_t Prices::staging(const Price& p, State& x, State& y) const {
  if (p.chunks == 1) return staging_at_once(p, x, y);
  const std::int64_t buffers = sent_and_received(p, x, y);
  return (buffers + p.chunks - 1) / p.chunks +
         2 * options_.element_size * static_cast<std::int64_t>(sets_.ranks(p.group));
}

std::int64_t Prices::least_peak(Price p, State& x, State& y) const {
  const std::int64_t pieces = piece(x) + piece(y);
  const std::int64_t at_once = staging_at_once(p, x, y);
  if (p.kind == StepKind::all_reduce || p.group == 0) return pieces + at_once;
  p.chunks = kMostChunks;
  return pieces + std::min(at_once, staging(p, x, y));
}

Price Prices::price_within(State& x, State& y) {
  Price p = price(x, y);
  if (!options_.peak_bytes || p.seconds == kNever) return p;
  if (p.group == 0 && x.same(y)) return p;
  const std::int64_t room = *options_.peak_bytes - piece(x) - piece(y);
  if (staging_at_once(p, x, y) <= room) return p;
  const double start = p.group == 0 ? 0 : sets_.link(p.group).overhead;
  const bool can_part = p.group != 0 && p.kind != StepKind::all_reduce;
  while (can_part && p.chunks < kMostChunks) {
    ++p.chunks;
    p.seconds += start;
    if (staging(p, x, y) <= room) return p;
  }
  p.seconds = kNever;
  return p;
}

}  // namespace intarsia
