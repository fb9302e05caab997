#include "plan/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace intarsia {
namespace {

constexpr std::int64_t kInsideOfAll = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostPositions = 64;  // that are counted one by one

/// The positions of a piece that one of `n` ranks gets, when each of its blocks is split. A piece
/// of 0,1,2,3,6,7 in 2 blocks is 0,1,2 and 3,6,7; of n = 2 ranks, rank 0 gets 0,1,3,6, rank 1 gets
/// 2,7.
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

/// Digits before the axis's: the axes that fix them.
Mask StateComparer::before(const State& s, std::size_t axis) const {
  const Role& role = roles_.role(s, axis);
  Mask out = 0;
  for_each_bit(s.sharding_axes & ~bit(axis), [&](std::size_t a) {
    const Role& other = roles_.role(s, a);
    if (other.dim == role.dim && other.begin > 0 && other.begin < role.begin) out |= bit(a);
  });
  return out;
}

/// Whether all others that shard an axis's dimension fix the same digits, by whatever axes.
bool StateComparer::same_digits(const State& x, const State& y, std::size_t axis) const {
  const auto digits = [&](const State& s) {
    FixedVector<std::pair<std::int64_t, std::int64_t>, kMaxAxes> out;
    for_each_bit(s.sharding_axes & ~bit(axis), [&](std::size_t a) {
      const Role& r = roles_.role(s, a);
      if (r.dim == roles_.role(s, axis).dim) out.push_back({r.begin, roles_.ranks(a)});
    });
    std::sort(out.begin(), out.end());
    return out;
  };
  return digits(x) == digits(y);
}

/// Whether an axis that shards by the same digit in both states leaves a rank the same positions,
/// though the dimension does not divide evenly: what shards before it is the same, or is one axis
/// of as many ranks, or it happens to.
bool StateComparer::leaves_same(const State& x, const State& y, std::size_t axis) const {
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
/// empty where the dimension is too long for that. `outer` are the axes that shard before it.
const std::vector<Mask>& StateComparer::held_along(const State& s, std::size_t axis,
                                                   Mask outer) const {
  const Role& role = roles_.role(s, axis);
  const std::int64_t length = shape_[static_cast<std::size_t>(role.dim)];
  Mask key = bit(s.id[axis]);
  for_each_bit(outer, [&](std::size_t a) { key |= bit(s.id[a]); });
  for (const auto& [known, held] : held_) {
    if (known == key) return held;
  }
  std::vector<Mask>& out = held_.emplace_back(key, std::vector<Mask>{}).second;
  const double parts = sets_.ranks(outer) * sets_.ranks(bit(axis));
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

Changes StateComparer::changes(const State& x, const State& y) const {
  Changes out;
  for_each_bit(x.sharding_axes, [&](std::size_t a) {
    const std::size_t id = x.id[a];
    const bool same = y.id[a] == id;
    if (same) out.same |= bit(a);
    if (!same || !(roles_.is_even(id) || leaves_same(x, y, a))) out.left |= bit(a);
  });
  return out;
}

Mask StateComparer::apart_by_irregular(const State& x, const State& y) const {
  Mask out = 0;
  for_each_bit((x.sharding_roles | y.sharding_roles) & roles_.irregular(), [&](std::size_t id) {
    const Mask beside = roles_.beside(id);
    const bool changes = ((x.sharding_roles ^ y.sharding_roles) & beside) != 0;
    if (changes && (y.sharding_roles & beside) != 0) out |= x.sharding_roles & beside;
  });
  return out;
}

double StateComparer::sources(const State& x, Mask wanted, Mask axes, Mask apart) {
  double out = 1;
  for_each_bit(axes, [&](std::size_t a) {
    const std::size_t id = x.id[a];
    double covered = 1;
    if (((apart & bit(id)) | (roles_.apart(id) & wanted)) == 0) {
      for_each_bit(wanted & roles_.beside(id),
                   [&](std::size_t j) { covered *= roles_.cover(id, j); });
    }
    const double n = sets_.ranks(bit(a));
    if (covered < n) out *= covered == 1 ? n : std::ceil(n / covered);
  });
  return out;
}

bool StateComparer::is_one_to_one(const State& x, const State& y, Mask left, Mask apart) {
  Mask wanted = 0;
  for_each_bit(left & y.sharding_axes, [&](std::size_t a) { wanted |= bit(y.id[a]); });
  return sources(x, wanted, left, apart) == 1;
}

bool StateComparer::joins_rows(const State& x, Mask group) const {
  bool rows = true;
  std::int64_t last = 0;
  for_each_bit(group, [&](std::size_t a) {
    const Role& r = roles_.role(x, a);
    if (r.begin < 0 && rows && r.dim == 0) {
      // Inside of all others; a regular one that follows would stand before it.
      rows = last < kInsideOfAll && roles_.is_plain(x.id[a]);
      last = kInsideOfAll;
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

}  // namespace intarsia
