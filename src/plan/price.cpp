#include "plan/price.h"

#include <algorithm>
#include <cmath>

#include "intarsia/boxes.h"

namespace intarsia {
namespace {

constexpr std::int64_t kMostChunks = 64;
constexpr std::int64_t kInnermost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostPositions = 64;  // that are counted one by one

/// Terms that a rank can make of its part, with what adds nothing around it, and lose no bit.
bool spreads_exactly(const Placement& p) {
  return p.reduction() != Reduction::avg && p.reduction() != Reduction::norm;
}

/// The positions of a piece that one of `n` ranks gets, when each of its blocks is cut.
Mask part_of(Mask piece, std::int64_t blocks, std::int64_t n, std::int64_t rank) {
  const std::int64_t count = std::popcount(piece);
  const std::int64_t block = std::max<std::int64_t>(1, (count + blocks - 1) / blocks);
  Mask out = 0;
  std::int64_t i = 0;
  for_each_bit(piece, [&](std::size_t position) {
    const std::int64_t length = std::min(block, count - i / block * block);
    const std::int64_t chunk = (length + n - 1) / n;
    if (i % block / chunk == rank) out |= bit(position);
    ++i;
  });
  return out;
}

}  // namespace

Prices::Prices(RoleTable& roles, const Layout& from, const Layout& to,
               std::span<const std::int64_t> shape, const PlanOptions& options)
    : roles_(roles),
      from_(from),
      to_(to),
      shape_(shape),
      options_(options),
      k_(from.mesh().axes()),
      bytes_(static_cast<double>(options.element_size)) {
  static const Topology kStandard = Topology::standard();
  topology_ = options.topology != nullptr ? options.topology : &kStandard;
  relative_ = std::min({1.0, topology_->all_gather, topology_->all_reduce});
  for (const std::int64_t s : shape) bytes_ *= static_cast<double>(s);
  for (std::size_t a = 0; a < k_; ++a) {
    if (roles_.begin()[a].kind == Role::Kind::terms) begin_terms_ |= bit(a);
    if (roles_.goal()[a].kind == Role::Kind::terms) goal_terms_ |= bit(a);
  }
  products_.assign(std::size_t{1} << k_, 1);
  for (std::size_t m = 1; m < products_.size(); ++m) {
    const auto low = static_cast<std::size_t>(std::countr_zero(m));
    products_[m] = products_[m & (m - 1)] * static_cast<double>(roles_.ranks(low));
  }
  links_.assign(products_.size(), nullptr);
}

const Link& Prices::link(Mask group) {
  const Link*& known = links_[group];
  if (known == nullptr) {
    AxisList axes;
    for_each_bit(group, [&](std::size_t a) { axes.push_back(static_cast<std::int8_t>(a)); });
    known = &topology_->link(from_.mesh(), axes);
  }
  return *known;
}

// ---- what changes ----------------------------------------------------------------------------

/// Digits before the axis's: the axes that fix them.
Mask Prices::before(const State& s, std::size_t axis) const {
  const Role& role = roles_.role(s, axis);
  Mask out = 0;
  for_each_bit(s.cuts & ~bit(axis), [&](std::size_t a) {
    const Role& other = roles_.role(s, a);
    if (other.dim == role.dim && other.begin > 0 && other.begin < role.begin) out |= bit(a);
  });
  return out;
}

/// Whether all that cut an axis's dimension besides it fix the same digits, by whatever axes.
bool Prices::same_digits(const State& x, const State& y, std::size_t axis) const {
  const auto digits = [&](const State& s) {
    FixedVector<std::pair<std::int64_t, std::int64_t>, kMaxAxes> out;
    for_each_bit(s.cuts & ~bit(axis), [&](std::size_t a) {
      const Role& r = roles_.role(s, a);
      if (r.dim == roles_.role(s, axis).dim) out.push_back({r.begin, roles_.ranks(a)});
    });
    std::sort(out.begin(), out.end());
    return out;
  };
  return digits(x) == digits(y);
}

/// Whether a cut that both states make by the same digit leaves the same positions, though the
/// dimension does not divide evenly: what cuts before it is the same, or is one cut of as many, or
/// it happens to.
bool Prices::leaves_same(const State& x, const State& y, std::size_t axis) const {
  const Role& role = roles_.role(x, axis);
  if (role.begin < 0) return !roles_.is_innermost(x.id[axis]) || same_digits(x, y, axis);
  const Mask in_x = before(x, axis);
  const Mask in_y = before(y, axis);
  bool same = in_x == in_y;
  for_each_bit(in_x & in_y, [&](std::size_t a) { same = same && x.id[a] == y.id[a]; });
  if (same) return true;
  const auto at_most_one = [&](Mask m) {
    return m == 0 || (std::has_single_bit(m) &&
                      roles_.ranks(static_cast<std::size_t>(std::countr_zero(m))) == role.begin);
  };
  if (at_most_one(in_x) && at_most_one(in_y)) return true;
  const std::vector<Mask>& old = held_along(x, axis, in_x);
  const std::vector<Mask>& now = held_along(y, axis, in_y);
  bool holds = !old.empty() && !now.empty();
  for (std::size_t i = 0; holds && i < now.size(); ++i) holds = (now[i] & ~old[i]) == 0;
  return holds;
}

/// For each value along an axis the positions that ranks hold there, counted element by element:
/// nothing where the dimension is too long for that. `outer` are the axes that cut before it.
const std::vector<Mask>& Prices::held_along(const State& s, std::size_t axis, Mask outer) const {
  const Role& role = roles_.role(s, axis);
  const std::int64_t length = shape_[static_cast<std::size_t>(role.dim)];
  Mask key = bit(s.id[axis]);
  for_each_bit(outer, [&](std::size_t a) { key |= bit(s.id[a]); });
  for (const auto& [known, held] : held_) {
    if (known == key) return held;
  }
  std::vector<Mask>& out = held_.emplace_back(key, std::vector<Mask>{}).second;
  const double parts = products_[outer] * products_[bit(axis)];
  if (length > kMostPositions || parts > kMostPositions) return out;
  std::vector<std::size_t> axes{axis};
  for_each_bit(outer, [&](std::size_t a) { axes.push_back(a); });
  std::sort(axes.begin(), axes.end(), [&](std::size_t a, std::size_t b) {
    return roles_.role(s, a).begin < roles_.role(s, b).begin;
  });
  std::vector<Mask> pieces{length == kMostPositions ? ~Mask{0}
                                                    : bit(static_cast<std::size_t>(length)) - 1};
  std::int64_t fixed = 1;
  for (const std::size_t a : axes) {
    const std::int64_t blocks = roles_.role(s, a).begin / fixed;
    fixed *= roles_.ranks(a);
    std::vector<Mask> next;
    for (std::int64_t v = 0; v < roles_.ranks(a); ++v) {
      for (const Mask piece : pieces) next.push_back(part_of(piece, blocks, roles_.ranks(a), v));
    }
    pieces = std::move(next);
  }
  // The axis itself came last: its value is the slowest.
  const auto n = static_cast<std::size_t>(roles_.ranks(axis));
  out.assign(n, 0);
  for (std::size_t i = 0; i < pieces.size(); ++i) out[i / (pieces.size() / n)] |= pieces[i];
  return out;
}

Prices::Changes Prices::changes(const State& x, const State& y) const {
  Changes out;
  for_each_bit(x.cuts, [&](std::size_t a) {
    const std::size_t id = x.id[a];
    const bool same = y.id[a] == id;
    if (same) out.same |= bit(a);
    if (!same || !(roles_.is_even(id) || leaves_same(x, y, a))) out.left |= bit(a);
  });
  return out;
}

/// The old cuts of dimensions that are cut in an irregular way, before or after, and otherwise.
Mask Prices::apart_by_irregular(const State& x, const State& y) const {
  Mask out = 0;
  for_each_bit((x.cut_roles | y.cut_roles) & roles_.irregular(), [&](std::size_t id) {
    const Mask beside = roles_.beside(id);
    const bool changes = ((x.cut_roles ^ y.cut_roles) & beside) != 0;
    if (changes && (y.cut_roles & beside) != 0) out |= x.cut_roles & beside;
  });
  return out;
}

/// From how many ranks a rank gets its new piece, itself included. Only the cuts `wanted` of the
/// new state tell ranks apart; all ranks along those that are `apart` count.
double Prices::sources(const State& x, Mask wanted, Mask cuts, Mask apart) {
  double out = 1;
  for_each_bit(cuts, [&](std::size_t a) {
    const std::size_t id = x.id[a];
    double covered = 1;
    if (((apart & bit(id)) | (roles_.apart(id) & wanted)) == 0) {
      for_each_bit(wanted & roles_.beside(id),
                   [&](std::size_t j) { covered *= roles_.cover(id, j); });
    }
    const double n = products_[bit(a)];
    if (covered < n) out *= covered == 1 ? n : std::ceil(n / covered);
  });
  return out;
}

/// Whether every rank of a group gets what one of them has, and each gives to one.
bool Prices::is_one_to_one(const State& x, const State& y, Mask left, Mask apart) {
  Mask wanted = 0;
  for_each_bit(left & y.cuts, [&](std::size_t a) { wanted |= bit(y.id[a]); });
  return sources(x, wanted, left, apart) == 1;
}

bool Prices::spreads(Mask axes) const {
  bool exact = true;
  for_each_bit(axes, [&](std::size_t a) { exact = exact && spreads_exactly(to_.placement(a)); });
  return exact;
}

/// Whether terms of these axes can be reduced together.
bool Prices::one_kind(Mask axes) const {
  const auto first = static_cast<std::size_t>(std::countr_zero(axes));
  bool same = true;
  for_each_bit(axes,
               [&](std::size_t a) { same = same && from_.placement(a) == from_.placement(first); });
  return same;
}

/// Whether gathering these cuts only joins pieces, in the order of ranks: they cut the outermost
/// dimension, and before them nothing is open.
bool Prices::joins_rows(const State& x, Mask group) const {
  bool rows = true;
  std::int64_t last = 0;
  for_each_bit(group, [&](std::size_t a) {
    const Role& r = roles_.role(x, a);
    if (r.begin < 0 && rows && r.dim == 0) {
      // Inside of all others; a regular one that follows would stand before it.
      rows = last < kInnermost && roles_.is_plain(x.id[a]);
      last = kInnermost;
      return;
    }
    if (!rows || r.dim != 0 || r.begin <= last) {
      rows = false;
      return;
    }
    std::int64_t fixed = 1;
    for_each_bit(before(x, a), [&](std::size_t b) { fixed *= roles_.ranks(b); });
    rows = r.begin == fixed;
    last = r.begin;
  });
  return rows;
}

// ---- prices ----------------------------------------------------------------------------------

Price Prices::price(const State& x, const State& y) {
  const Mask reduced = x.terms & ~y.terms;
  const Mask made = y.terms & ~x.terms;
  const Changes c = changes(x, y);
  const double b = bytes_ / products_[x.cuts];
  const double a = bytes_ / products_[y.cuts];
  const double copy = topology_->copy_bandwidth;
  Price out;
  out.group = c.left | reduced;
  if (made != 0) {
    // Terms are made of what a rank holds; where that was a part, with nothing around it.
    if (reduced != 0 || (c.left & ~made) != 0 || (made & ~goal_terms_) != 0 || !spreads(c.left)) {
      return out;
    }
    return {StepKind::make_partial, 0, 1, a / copy};
  }
  if (out.group == 0) {
    out.seconds = x.cut_roles == y.cut_roles ? 0 : a / copy;
    return out;
  }
  if (reduced != 0 && ((reduced & ~begin_terms_) != 0 || !one_kind(reduced))) return out;
  out = exchange(x, y, c, reduced);
  const double n = products_[out.group];
  const Link& l = link(out.group);
  if (c.left == 0 && x.cut_roles == y.cut_roles) {
    const double seconds = l.overhead + 2 * (n - 1) * l.latency +
                           2 * b * (n - 1) / n * topology_->all_reduce / l.bandwidth + b / copy;
    if (seconds <= out.seconds) return {StepKind::all_reduce, out.group, 1, seconds};
  } else if (reduced == 0 && (c.left & c.same) == 0 && (y.cut_roles & ~x.cut_roles) == 0) {
    const double seconds = l.overhead + (n - 1) * l.latency +
                           (a - b) * topology_->all_gather / l.bandwidth +
                           (joins_rows(x, c.left) ? 0 : a / copy);
    if (seconds <= out.seconds) return {StepKind::all_gather, out.group, 1, seconds};
  }
  return out;
}

Price Prices::exchange(const State& x, const State& y, const Changes& c, Mask reduced) {
  const Link& l = link(c.left | reduced);
  const Mask irregular = roles_.irregular() != 0 ? apart_by_irregular(x, y) : 0;
  const bool keeps_none = irregular != 0 || (x.conflicts & y.cut_roles) != 0;
  const double a = bytes_ / products_[y.cuts];
  const double held =
      keeps_none ? 0 : bytes_ / products_[x.cuts] * products_[c.same] / products_[y.cuts];
  const double terms = products_[reduced];
  const double received = terms * a - held;
  const double from = terms * sources(x, y.cut_roles, c.left, irregular);
  Price out;
  out.group = c.left | reduced;
  out.seconds = l.overhead + std::max(1.0, from - 1) * l.latency + received / l.bandwidth +
                (terms > 1 ? 3 * terms * a : 2 * received) / topology_->copy_bandwidth;
  out.kind = (reduced & ~y.cuts) != 0                              ? StepKind::exchange_terms
             : reduced != 0                                        ? StepKind::reduce_scatter
             : from == 1 && is_one_to_one(x, y, c.left, irregular) ? StepKind::permute
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
std::int64_t Prices::whole_staging(const Price& p, State& x, State& y) const {
  switch (p.kind) {
    case StepKind::slice:
    case StepKind::relabel:
    case StepKind::make_partial:
      return 0;
    case StepKind::all_gather:
      if (!is_even(x)) return sent_and_received(p, x, y);
      return joins_rows(x, p.group) ? 0 : piece(y);
    case StepKind::all_reduce:
      return piece(y);
    default:
      break;
  }
  const Mask reduced = x.terms & ~y.terms;
  const std::int64_t whole = sent_and_received(p, x, y);
  // Terms that come in several parts are put together before they are reduced.
  const bool in_parts = reduced != 0 && (p.group & ~reduced) != 0;
  return whole + (in_parts ? static_cast<std::int64_t>(products_[reduced]) * piece(y) : 0);
}

/// Whether all ranks hold equally much.
bool Prices::is_even(State& s) const {
  return static_cast<double>(piece(s)) * products_[s.cuts] == bytes_;
}

/// Buffers of what an exchange sends and receives.
std::int64_t Prices::sent_and_received(const Price& p, State& x, State& y) const {
  const auto terms = static_cast<std::int64_t>(products_[x.terms & ~y.terms]);
  const auto copies = static_cast<std::int64_t>(products_[p.group & ~y.cuts]);
  return copies * piece(x) + terms * piece(y);
}

/// What a step needs besides the two pieces. In parts, each rank's part may be one element
/// longer than its share.
std::int64_t Prices::staging(const Price& p, State& x, State& y) const {
  if (p.chunks == 1) return whole_staging(p, x, y);
  const std::int64_t whole = sent_and_received(p, x, y);
  return (whole + p.chunks - 1) / p.chunks +
         2 * options_.element_size * static_cast<std::int64_t>(products_[p.group]);
}

std::int64_t Prices::least_peak(Price p, State& x, State& y) const {
  const std::int64_t pieces = piece(x) + piece(y);
  const std::int64_t whole = whole_staging(p, x, y);
  if (p.kind == StepKind::all_reduce || p.group == 0) return pieces + whole;
  p.chunks = kMostChunks;
  return pieces + std::min(whole, staging(p, x, y));
}

Price Prices::price_within(State& x, State& y) {
  Price p = price(x, y);
  if (!options_.peak_bytes || p.seconds == kNever) return p;
  if (p.group == 0 && x.same(y)) return p;
  const std::int64_t room = *options_.peak_bytes - piece(x) - piece(y);
  if (whole_staging(p, x, y) <= room) return p;
  const double start = p.group == 0 ? 0 : link(p.group).overhead;
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
