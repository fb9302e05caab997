#include "plan/role_table.h"

#include <algorithm>

namespace intarsia {

RoleTable::RoleTable(const Layout& from, const Layout& to, std::span<const std::int64_t> shape)
    : ends_(from, to, shape) {
  roles_.reserve(kMostRoles);
}

std::uint8_t RoleTable::number(std::size_t axis, const Role& role) {
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    if (roles_[i].axis == axis && roles_[i].role == role) return static_cast<std::uint8_t>(i);
  }
  const std::size_t id = roles_.size();
  roles_.push_back({role, axis});
  if (role.kind != Role::Kind::sharded) return static_cast<std::uint8_t>(id);
  const auto dim = static_cast<std::size_t>(role.dim);
  if (ends_.has(axis, role)) given_ |= bit(id);
  if (role.begin < 0) irregular_ |= bit(id);
  if (role.begin > 0 && ends_.length(dim) % (role.begin * ranks(axis)) == 0) even_ |= bit(id);
  if (role.begin * ranks(axis) > ends_.length(dim)) crowded_ |= bit(id);
  for_each_bit(in_dim_[dim], [&](std::size_t other) { relate(id, other); });
  in_dim_[dim] |= bit(id);
  return static_cast<std::uint8_t>(id);
}

/// Notes whether two roles that shard one dimension fit together.
void RoleTable::relate(std::size_t i, std::size_t j) {
  const Numbered& x = roles_[i];
  const Numbered& y = roles_[j];
  const bool irregular = x.role.begin < 0 || y.role.begin < 0;
  // An irregular role stands beside those of its own layout only; the innermost beside regular
  // ones.
  const bool innermost = x.role.is_innermost() || y.role.is_innermost();
  const bool together = innermost ? x.role.begin > 0 || y.role.begin > 0
                                  : (begin()[x.axis] == x.role && begin()[y.axis] == y.role) ||
                                        (goal()[x.axis] == x.role && goal()[y.axis] == y.role);
  if (irregular ? !together : overlap(x, y)) {
    conflicts_[i] |= bit(j);
    conflicts_[j] |= bit(i);
  }
  if (irregular || !nest(x, y)) {
    apart_[i] |= bit(j);
    apart_[j] |= bit(i);
  }
}

bool RoleTable::is_plain(std::size_t id) const {
  const Numbered& x = roles_[id];
  return is_innermost(id) ||
         (begin()[x.axis] == x.role ? ends_.from() : ends_.to()).placement(x.axis).split() == 1;
}

/// Whether an irregular role has all those before it that it depends on.
bool RoleTable::has_outer(const State& s, const Numbered& x, const Layout& layout) const {
  const Roles& roles = &layout == &ends_.from() ? begin() : goal();
  for (const std::int8_t axis : layout.axes_of(x.role.dim)) {
    const auto a = static_cast<std::size_t>(axis);
    if (a == x.axis) break;
    if (ranks(a) > 1 && role(s, a) != roles[a]) return false;
  }
  return true;
}

/// Whether the regular roles leave blocks open, so that one without blocks inside of them is
/// irregular; they have room for it; and it is not one of the two layouts' own.
bool RoleTable::can_be_innermost(const State& s, const Numbered& x) const {
  std::int64_t fixed = 1;
  std::int64_t end = 1;
  std::size_t count = 0;
  for_each_bit(s.sharding_axes & ~bit(x.axis), [&](std::size_t a) {
    const Role& r = role(s, a);
    if (r.dim != x.role.dim) return;
    fixed *= ranks(a);
    end = std::max(end, r.begin * ranks(a));
    ++count;
  });
  const auto dim = static_cast<std::size_t>(x.role.dim);
  if (end == fixed || fixed * ranks(x.axis) > ends_.length(dim)) return false;
  for (const Layout* layout : {&ends_.from(), &ends_.to()}) {
    const Role& own = (layout == &ends_.from() ? begin() : goal())[x.axis];
    if (own.kind != Role::Kind::sharded || own.dim != x.role.dim || own.begin > 0) continue;
    if (own == x.role) continue;
    std::size_t before = 0;
    for (const std::int8_t a : layout->axes_of(x.role.dim)) {
      if (static_cast<std::size_t>(a) == x.axis) break;
      before += ranks(static_cast<std::size_t>(a)) > 1 ? 1 : 0;
    }
    if (before == count && layout->placement(x.axis).split() == 1 && has_outer(s, x, *layout)) {
      return false;
    }
  }
  return true;
}

/// Whether two roles fix digits in common.
bool RoleTable::overlap(const Numbered& x, const Numbered& y) const {
  const std::int64_t a = x.role.begin;
  const std::int64_t b = y.role.begin;
  const std::int64_t an = a * ranks(x.axis);
  const std::int64_t bn = b * ranks(y.axis);
  if (a >= bn) return a % bn != 0;
  if (b >= an) return b % an != 0;
  return true;
}

/// Whether of the lengths of their parts each divides the next.
bool RoleTable::nest(const Numbered& x, const Numbered& y) const {
  std::array<std::int64_t, 4> at = {x.role.begin, x.role.begin * ranks(x.axis), y.role.begin,
                                    y.role.begin * ranks(y.axis)};
  std::sort(at.begin(), at.end());
  return at[1] % at[0] == 0 && at[2] % at[1] == 0 && at[3] % at[2] == 0;
}

double RoleTable::cover(std::size_t x, std::size_t y) {
  if ((covered_[x] & bit(y)) != 0) return static_cast<double>(cover_[x][y]);
  const Role& r = role(x);
  const Role& s = role(y);
  const std::int64_t low = std::max(r.begin, s.begin);
  const std::int64_t high =
      std::min(r.begin * ranks(roles_[x].axis), s.begin * ranks(roles_[y].axis));
  covered_[x] |= bit(y);
  cover_[x][y] = (apart_[x] & bit(y)) != 0 || high <= low ? 1 : static_cast<float>(high / low);
  return static_cast<double>(cover_[x][y]);
}

void RoleTable::play(State& s, std::size_t axis, std::uint8_t id) const {
  s.id[axis] = id;
  const Role& r = roles_[id].role;
  if (r.kind == Role::Kind::partial) s.partial_axes |= bit(axis);
  if (r.kind != Role::Kind::sharded) return;
  s.sharding_axes |= bit(axis);
  s.sharding_roles |= bit(id);
  s.conflicts |= conflicts_[id];
}

/// Irregular roles stand with all that shard before them; partial values that were made and those
/// that are still there must commute; and a dimension has room for all that shard it.
bool RoleTable::is_legal(const State& s) const {
  if ((s.conflicts & s.sharding_roles) != 0) return false;
  bool legal = true;
  for_each_bit(s.sharding_roles & irregular_, [&](std::size_t id) {
    const Numbered& x = roles_[id];
    legal = legal && (is_innermost(id)
                          ? can_be_innermost(s, x)
                          : has_outer(s, x, begin()[x.axis] == x.role ? ends_.from() : ends_.to()));
  });
  for_each_bit(s.sharding_roles & crowded_, [&](std::size_t id) {
    legal = legal && (s.sharding_roles & beside(id) & ~given_) == 0;
  });
  for_each_bit(s.partial_axes, [&](std::size_t a) {
    if (begin()[a].kind == Role::Kind::partial) return;
    for_each_bit(s.partial_axes, [&](std::size_t b) {
      legal = legal && (begin()[b].kind != Role::Kind::partial ||
                        commute(ends_.from().placement(b), ends_.to().placement(a)));
    });
  });
  return legal;
}

Layout RoleTable::layout(const State& s) const {
  Roles roles;
  for (std::size_t a = 0; a < begin().size(); ++a) roles.push_back(role(s, a));
  return ends_.layout(roles);
}

}  // namespace intarsia
