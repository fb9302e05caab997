#include "plan/digits.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace intarsia {

Roles roles_of(const Layout& layout) {
  const Mesh& mesh = layout.mesh();
  Roles out;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const bool partial = layout.placement(a).is_partial() && mesh.size(a) > 1;
    out.push_back({partial ? Role::Kind::partial : Role::Kind::replicated, -1, 1});
  }
  int dim = -1;
  std::int64_t end = 1;   // of the digits so far
  std::int64_t open = 1;  // how many blocks they leave
  bool regular = true;
  for (const std::int8_t axis : layout.sharding_axes()) {
    const auto a = static_cast<std::size_t>(axis);
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
    out[a] = {Role::Kind::sharded, static_cast<std::int8_t>(dim), regular ? end : Role::kIrregular};
    end *= mesh.size(a);
  }
  return out;
}

Endpoints::Endpoints(const Layout& from, const Layout& to, std::span<const std::int64_t> shape)
    : from_(from), to_(to), shape_(shape), begin_(roles_of(from)), goal_(roles_of(to)) {
  for (std::size_t a = 0; a < from.mesh().axes(); ++a) n_.push_back(from.mesh().size(a));
  for (std::size_t d = 0; d < shape.size(); ++d) {
    tell_irregular_apart(static_cast<int>(d));
    find_innermost(from, begin_, static_cast<int>(d));
    find_innermost(to, goal_, static_cast<int>(d));
  }
}

/// An irregular role is the same in both layouts where all that shard the dimension up to it are.
void Endpoints::tell_irregular_apart(int dim) {
  bool same = true;
  std::size_t i = 0;
  const AxisList before = from_.axes_of(dim);
  for (const std::int8_t axis : to_.axes_of(dim)) {
    const auto a = static_cast<std::size_t>(axis);
    same = same && i < before.size() && before[i] == axis && from_.placement(a) == to_.placement(a);
    ++i;
    if (goal_[a].begin < 0 && !same) goal_[a].begin = Role::kIrregularInGoal;
  }
}

/// An irregular role without blocks, inside of regular ones, depends on their digits only.
void Endpoints::find_innermost(const Layout& layout, Roles& roles, int dim) const {
  std::size_t irregular = n_.size();
  std::size_t count = 0;
  for (const std::int8_t axis : layout.axes_of(dim)) {
    const auto a = static_cast<std::size_t>(axis);
    if (n_[a] == 1 || roles[a].begin > 0) continue;
    irregular = a;
    ++count;
  }
  if (count == 1 && layout.placement(irregular).split() == 1)
    roles[irregular].begin = Role::kInnermost;
}

std::int64_t Endpoints::end_of(std::size_t dim) const {
  std::int64_t end = 1;
  for (const Roles* roles : {&begin_, &goal_}) {
    for (std::size_t a = 0; a < n_.size(); ++a) {
      const Role& r = (*roles)[a];
      if (r.kind != Role::Kind::sharded || r.dim != static_cast<int>(dim)) continue;
      if (r.begin < 0) return -1;
      end = std::lcm(end, r.begin * n_[a]);
    }
  }
  return end;
}

FixedVector<std::int64_t, 64> Endpoints::begins_of_some(std::size_t axis, std::size_t dim) const {
  FixedVector<std::int64_t, 64> out;
  for (const Layout* layout : {&from_, &to_}) {
    AxisList before;
    bool shards = false;
    for (const std::int8_t a : layout->axes_of(static_cast<int>(dim))) {
      shards = a == static_cast<int>(axis);
      if (shards) break;
      if (n_[static_cast<std::size_t>(a)] > 1) before.push_back(a);
    }
    for (Mask some = 0; shards && before.size() < 3 && some < bit(before.size()); ++some) {
      std::int64_t end = 1;
      std::int64_t open = 1;
      bool regular = true;
      const auto begin_digit = [&](std::size_t a) {
        const std::int64_t split = layout->placement(a).split();
        regular = regular && split % open == 0;
        end *= split / open;
        open = split;
      };
      for_each_bit(some, [&](std::size_t i) {
        const auto a = static_cast<std::size_t>(before[i]);
        begin_digit(a);
        end *= n_[a];
      });
      begin_digit(axis);
      if (regular) out.push_back(end);
    }
  }
  return out;
}

bool Endpoints::has(std::size_t axis, const Role& role) const {
  if (role == begin_[axis] || role == goal_[axis]) return true;
  const auto dim = static_cast<std::size_t>(role.dim);
  if (role.begin * n_[axis] <= shape_[dim] && end_of(dim) <= shape_[dim]) return false;
  const auto some = begins_of_some(axis, dim);
  return std::find(some.begin(), some.end(), role.begin) != some.end();
}

Layout Endpoints::layout(const Roles& roles) const {
  std::vector<Placement> placements(from_.placements().begin(), from_.placements().end());
  LayoutOptions options;
  for (std::size_t a = 0; a < n_.size(); ++a) {
    if (n_[a] > 1) placements[a] = Placement::replicate();
    if (roles[a].kind != Role::Kind::partial) continue;
    placements[a] = begin_[a].kind == Role::Kind::partial ? from_.placement(a) : to_.placement(a);
  }
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    order_axes(roles, static_cast<int>(d), placements, options);
  }
  return Layout(from_.mesh(), placements, options);
}

void Endpoints::order_axes(const Roles& roles, int dim, std::vector<Placement>& placements,
                           LayoutOptions& options) const {
  AxisList sharding;
  std::int8_t innermost = -1;
  std::int64_t irregular = 1;  // negative: the kind
  for (std::size_t a = 0; a < n_.size(); ++a) {
    const Role& r = roles[a];
    if (r.kind != Role::Kind::sharded || r.dim != dim) continue;
    if (r.is_innermost()) {
      innermost = static_cast<std::int8_t>(a);
      continue;
    }
    sharding.push_back(static_cast<std::int8_t>(a));
    // One that both layouts have may stand before one that only the goal has.
    irregular = std::min(irregular, r.begin);
  }
  if (irregular < 0) {
    const Layout& as = irregular == Role::kIrregularInGoal ? to_ : from_;
    AxisList ordered;
    for (const std::int8_t a : as.axes_of(dim)) {
      if (std::find(sharding.begin(), sharding.end(), a) == sharding.end()) continue;
      placements[static_cast<std::size_t>(a)] = as.placement(static_cast<std::size_t>(a));
      ordered.push_back(a);
    }
    sharding = ordered;
  } else {
    const auto begin = [&](std::int8_t a) { return roles[static_cast<std::size_t>(a)].begin; };
    std::sort(sharding.begin(), sharding.end(),
              [&](std::int8_t a, std::int8_t b) { return begin(a) < begin(b); });
    std::int64_t fixed = 1;
    for (const std::int8_t a : sharding) {
      const auto axis = static_cast<std::size_t>(a);
      placements[axis] = Placement::strided_shard(dim, begin(a) / fixed);
      fixed *= n_[axis];
    }
  }
  if (innermost >= 0) {
    placements[static_cast<std::size_t>(innermost)] = Placement::shard(dim);
    sharding.push_back(innermost);
  }
  for (const std::int8_t a : from_.axes_of(dim)) {
    if (n_[static_cast<std::size_t>(a)] == 1) sharding.push_back(a);
  }
  if (sharding.size() < 2) return;
  std::vector<std::string> names;
  for (const std::int8_t a : sharding) {
    names.push_back(from_.mesh().name(static_cast<std::size_t>(a)));
  }
  options.order.emplace_back(dim, std::move(names));
}

}  // namespace intarsia
