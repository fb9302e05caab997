#include "plan/digits.h"

#include <algorithm>
#include <numeric>

namespace intarsia {
namespace {

constexpr std::int64_t kIrregular = -1;        // as in the layout to come from
constexpr std::int64_t kIrregularInGoal = -2;  // as in the other, where that differs
constexpr std::int64_t kInnermost = -3;        // a plain cut inside of all regular ones that stand

}  // namespace

Roles roles_of(const Layout& layout) {
  const Mesh& mesh = layout.mesh();
  Roles out;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const bool terms = layout.placement(a).is_partial() && mesh.size(a) > 1;
    out.push_back({terms ? Role::Kind::terms : Role::Kind::whole, -1, 1});
  }
  int dim = -1;
  std::int64_t end = 1;   // of the digits so far
  std::int64_t open = 1;  // how many blocks they leave
  bool regular = true;
  for (const std::int8_t cut : layout.cuts()) {
    const auto a = static_cast<std::size_t>(cut);
    if (mesh.size(a) == 1) continue;
    const Placement& p = layout.placement(a);
    if (p.dim() != dim) {
      dim = p.dim();
      end = open = 1;
      regular = true;
    }
    regular = regular && p.split() % open == 0;
    if (regular) {
      end *= p.split() / open;
      open = p.split();
    }
    out[a] = {Role::Kind::cut, static_cast<std::int8_t>(dim), regular ? end : kIrregular};
    end *= mesh.size(a);
  }
  return out;
}

RoleTable::RoleTable(const Layout& from, const Layout& to, std::span<const std::int64_t> shape)
    : from_(from), to_(to), shape_(shape), begin_(roles_of(from)), goal_(roles_of(to)) {
  for (std::size_t a = 0; a < from.mesh().axes(); ++a) n_.push_back(from.mesh().size(a));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    tell_irregular_apart(static_cast<int>(d));
    find_innermost(from, begin_, static_cast<int>(d));
    find_innermost(to, goal_, static_cast<int>(d));
  }
  roles_.reserve(kMostRoles);
}

/// An irregular cut is the same in both layouts where all that cut the dimension up to it are.
void RoleTable::tell_irregular_apart(int dim) {
  bool same = true;
  std::size_t i = 0;
  const AxisList before = from_.axes_of(dim);
  for (const std::int8_t cut : to_.axes_of(dim)) {
    const auto a = static_cast<std::size_t>(cut);
    same = same && i < before.size() && before[i] == cut && from_.placement(a) == to_.placement(a);
    ++i;
    if (goal_[a].begin < 0 && !same) goal_[a].begin = kIrregularInGoal;
  }
}

/// A plain irregular cut inside of regular ones depends on their digits only.
void RoleTable::find_innermost(const Layout& layout, Roles& roles, int dim) const {
  std::size_t irregular = n_.size();
  std::size_t count = 0;
  for (const std::int8_t cut : layout.axes_of(dim)) {
    const auto a = static_cast<std::size_t>(cut);
    if (n_[a] == 1 || roles[a].begin > 0) continue;
    irregular = a;
    ++count;
  }
  if (count == 1 && layout.placement(irregular).split() == 1) roles[irregular].begin = kInnermost;
}

std::int64_t RoleTable::end_of(std::size_t dim) const {
  std::int64_t end = 1;
  for (const Roles* roles : {&begin_, &goal_}) {
    for (std::size_t a = 0; a < n_.size(); ++a) {
      const Role& r = (*roles)[a];
      if (r.kind != Role::Kind::cut || r.dim != static_cast<int>(dim)) continue;
      if (r.begin < 0) return -1;
      end = std::lcm(end, r.begin * n_[a]);
    }
  }
  return end;
}

FixedVector<std::int64_t, 64> RoleTable::begins_of_some(std::size_t axis, std::size_t dim) const {
  FixedVector<std::int64_t, 64> out;
  for (const Layout* layout : {&from_, &to_}) {
    AxisList before;
    bool cuts = false;
    for (const std::int8_t a : layout->axes_of(static_cast<int>(dim))) {
      cuts = a == static_cast<int>(axis);
      if (cuts) break;
      if (n_[static_cast<std::size_t>(a)] > 1) before.push_back(a);
    }
    for (Mask some = 0; cuts && before.size() < 3 && some < bit(before.size()); ++some) {
      std::int64_t end = 1;
      std::int64_t open = 1;
      bool regular = true;
      const auto cut = [&](std::size_t a) {
        const std::int64_t split = layout->placement(a).split();
        regular = regular && split % open == 0;
        end *= split / open;
        open = split;
      };
      for_each_bit(some, [&](std::size_t i) {
        const auto a = static_cast<std::size_t>(before[i]);
        cut(a);
        end *= n_[a];
      });
      cut(axis);
      if (regular) out.push_back(end);
    }
  }
  return out;
}

bool RoleTable::is_given(const Numbered& x) const {
  if (x.role == begin_[x.axis] || x.role == goal_[x.axis]) return true;
  const auto dim = static_cast<std::size_t>(x.role.dim);
  if (x.role.begin * n_[x.axis] <= shape_[dim] && end_of(dim) <= shape_[dim]) return false;
  const auto some = begins_of_some(x.axis, dim);
  return std::find(some.begin(), some.end(), x.role.begin) != some.end();
}

std::uint8_t RoleTable::number(std::size_t axis, const Role& role) {
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i].axis == axis && roles_[i].role == role) return static_cast<std::uint8_t>(i);
  }
  const std::size_t id = roles_.size();
  roles_.push_back({role, axis});
  if (role.kind != Role::Kind::cut) return static_cast<std::uint8_t>(id);
  const auto dim = static_cast<std::size_t>(role.dim);
  if (is_given(roles_.back())) given_ |= bit(id);
  if (role.begin < 0) irregular_ |= bit(id);
  if (role.begin > 0 && shape_[dim] % (role.begin * n_[axis]) == 0) even_ |= bit(id);
  if (role.begin * n_[axis] > shape_[dim]) crowded_ |= bit(id);
  for_each_bit(in_dim_[dim], [&](std::size_t other) { relate(id, other); });
  in_dim_[dim] |= bit(id);
  return static_cast<std::uint8_t>(id);
}

/// Notes what of two cuts of one dimension fits together.
void RoleTable::relate(std::size_t i, std::size_t j) {
  const Numbered& x = roles_[i];
  const Numbered& y = roles_[j];
  const bool irregular = x.role.begin < 0 || y.role.begin < 0;
  // An irregular cut stands beside those of its own layout only; the innermost beside regular ones.
  const bool innermost = x.role.begin == kInnermost || y.role.begin == kInnermost;
  const bool together = innermost ? x.role.begin > 0 || y.role.begin > 0
                                  : (begin_[x.axis] == x.role && begin_[y.axis] == y.role) ||
                                        (goal_[x.axis] == x.role && goal_[y.axis] == y.role);
  if (irregular ? !together : overlap(x, y)) {
    conflicts_[i] |= bit(j);
    conflicts_[j] |= bit(i);
  }
  if (irregular || !nest(x, y)) {
    apart_[i] |= bit(j);
    apart_[j] |= bit(i);
  }
}

Role RoleTable::innermost(std::size_t dim) {
  return {Role::Kind::cut, static_cast<std::int8_t>(dim), kInnermost};
}

bool RoleTable::is_innermost(std::size_t id) const { return roles_[id].role.begin == kInnermost; }

bool RoleTable::is_plain(std::size_t id) const {
  const Numbered& x = roles_[id];
  return is_innermost(id) ||
         (begin_[x.axis] == x.role ? from_ : to_).placement(x.axis).split() == 1;
}

/// Whether an irregular cut has all those before it that it depends on.
bool RoleTable::has_outer(const State& s, const Numbered& x, const Layout& layout) const {
  const Roles& roles = &layout == &from_ ? begin_ : goal_;
  for (const std::int8_t cut : layout.axes_of(x.role.dim)) {
    const auto a = static_cast<std::size_t>(cut);
    if (a == x.axis) break;
    if (n_[a] > 1 && role(s, a) != roles[a]) return false;
  }
  return true;
}

/// Whether the regular cuts leave blocks open and have room for a plain one inside, so that it is
/// irregular; and it is not one of the two layouts' own.
bool RoleTable::can_be_innermost(const State& s, const Numbered& x) const {
  std::int64_t fixed = 1;
  std::int64_t end = 1;
  std::size_t count = 0;
  for_each_bit(s.cuts & ~bit(x.axis), [&](std::size_t a) {
    const Role& r = role(s, a);
    if (r.dim != x.role.dim) return;
    fixed *= n_[a];
    end = std::max(end, r.begin * n_[a]);
    ++count;
  });
  const auto dim = static_cast<std::size_t>(x.role.dim);
  if (end == fixed || fixed * n_[x.axis] > shape_[dim]) return false;
  for (const Layout* layout : {&from_, &to_}) {
    const Role& own = (layout == &from_ ? begin_ : goal_)[x.axis];
    if (own.kind != Role::Kind::cut || own.dim != x.role.dim || own.begin > 0) continue;
    if (own == x.role) continue;
    std::size_t before = 0;
    for (const std::int8_t a : layout->axes_of(x.role.dim)) {
      if (static_cast<std::size_t>(a) == x.axis) break;
      before += n_[static_cast<std::size_t>(a)] > 1 ? 1 : 0;
    }
    if (before == count && layout->placement(x.axis).split() == 1 && has_outer(s, x, *layout)) {
      return false;
    }
  }
  return true;
}

/// Whether two cuts fix digits in common.
bool RoleTable::overlap(const Numbered& x, const Numbered& y) const {
  const std::int64_t a = x.role.begin;
  const std::int64_t b = y.role.begin;
  const std::int64_t an = a * n_[x.axis];
  const std::int64_t bn = b * n_[y.axis];
  if (a >= bn) return a % bn != 0;
  if (b >= an) return b % an != 0;
  return true;
}

/// Whether of the lengths of their parts each divides the next.
bool RoleTable::nest(const Numbered& x, const Numbered& y) const {
  std::array<std::int64_t, 4> at = {x.role.begin, x.role.begin * n_[x.axis], y.role.begin,
                                    y.role.begin * n_[y.axis]};
  std::sort(at.begin(), at.end());
  return at[1] % at[0] == 0 && at[2] % at[1] == 0 && at[3] % at[2] == 0;
}

double RoleTable::cover(std::size_t x, std::size_t y) {
  if ((covered_[x] & bit(y)) != 0) return static_cast<double>(cover_[x][y]);
  const Role& r = role(x);
  const Role& s = role(y);
  const std::int64_t low = std::max(r.begin, s.begin);
  const std::int64_t high = std::min(r.begin * n_[roles_[x].axis], s.begin * n_[roles_[y].axis]);
  covered_[x] |= bit(y);
  cover_[x][y] = (apart_[x] & bit(y)) != 0 || high <= low ? 1 : static_cast<float>(high / low);
  return static_cast<double>(cover_[x][y]);
}

void RoleTable::play(State& s, std::size_t axis, std::uint8_t id) const {
  s.id[axis] = id;
  const Role& r = roles_[id].role;
  if (r.kind == Role::Kind::terms) s.terms |= bit(axis);
  if (r.kind != Role::Kind::cut) return;
  s.cuts |= bit(axis);
  s.cut_roles |= bit(id);
  s.conflicts |= conflicts_[id];
}

/// Irregular cuts stand with all that cut before them; terms that came and terms that are still
/// there must go together; and a dimension has room for its cuts.
bool RoleTable::is_legal(const State& s) const {
  if ((s.conflicts & s.cut_roles) != 0) return false;
  bool legal = true;
  for_each_bit(s.cut_roles & irregular_, [&](std::size_t id) {
    const Numbered& x = roles_[id];
    legal = legal && (is_innermost(id) ? can_be_innermost(s, x)
                                       : has_outer(s, x, begin_[x.axis] == x.role ? from_ : to_));
  });
  for_each_bit(s.cut_roles & crowded_,
               [&](std::size_t id) { legal = legal && (s.cut_roles & beside(id) & ~given_) == 0; });
  for_each_bit(s.terms, [&](std::size_t a) {
    if (begin_[a].kind == Role::Kind::terms) return;
    for_each_bit(s.terms, [&](std::size_t b) {
      legal = legal && (begin_[b].kind != Role::Kind::terms ||
                        commute(from_.placement(b), to_.placement(a)));
    });
  });
  return legal;
}

Layout RoleTable::layout(const State& s) const {
  std::vector<Placement> placements(from_.placements().begin(), from_.placements().end());
  LayoutOptions options;
  for (std::size_t a = 0; a < n_.size(); ++a) {
    if (n_[a] > 1) placements[a] = Placement::replicate();
    if ((s.terms & bit(a)) == 0) continue;
    placements[a] = begin_[a].kind == Role::Kind::terms ? from_.placement(a) : to_.placement(a);
  }
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    order_cuts(s, static_cast<int>(d), placements, options);
  }
  return Layout(from_.mesh(), placements, options);
}

void RoleTable::order_cuts(const State& s, int dim, std::vector<Placement>& placements,
                           LayoutOptions& options) const {
  AxisList cuts;
  std::int8_t innermost = -1;
  std::int64_t irregular = 1;  // negative: the kind
  for_each_bit(s.cuts, [&](std::size_t a) {
    const Role& r = role(s, a);
    if (r.dim != dim) return;
    if (r.begin == kInnermost) {
      innermost = static_cast<std::int8_t>(a);
      return;
    }
    cuts.push_back(static_cast<std::int8_t>(a));
    // One that both layouts have may stand before one that only the goal has.
    irregular = std::min(irregular, r.begin);
  });
  if (irregular < 0) {
    const Layout& as = irregular == kIrregularInGoal ? to_ : from_;
    AxisList ordered;
    for (const std::int8_t a : as.axes_of(dim)) {
      if (std::find(cuts.begin(), cuts.end(), a) == cuts.end()) continue;
      placements[static_cast<std::size_t>(a)] = as.placement(static_cast<std::size_t>(a));
      ordered.push_back(a);
    }
    cuts = ordered;
  } else {
    const auto begin = [&](std::int8_t a) { return role(s, static_cast<std::size_t>(a)).begin; };
    std::sort(cuts.begin(), cuts.end(),
              [&](std::int8_t a, std::int8_t b) { return begin(a) < begin(b); });
    std::int64_t fixed = 1;
    for (const std::int8_t a : cuts) {
      const auto axis = static_cast<std::size_t>(a);
      placements[axis] = Placement::strided_shard(dim, begin(a) / fixed);
      fixed *= n_[axis];
    }
  }
  if (innermost >= 0) {
    placements[static_cast<std::size_t>(innermost)] = Placement::shard(dim);
    cuts.push_back(innermost);
  }
  for (const std::int8_t a : from_.axes_of(dim)) {
    if (n_[static_cast<std::size_t>(a)] == 1) cuts.push_back(a);
  }
  if (cuts.size() < 2) return;
  std::vector<std::string> names;
  for (const std::int8_t a : cuts) {
    names.push_back(from_.mesh().name(static_cast<std::size_t>(a)));
  }
  options.order.emplace_back(dim, std::move(names));
}

}  // namespace intarsia
