#include "plan/lattice.h"

#include <algorithm>

namespace intarsia {

Lattice::Lattice(RoleTable& roles, Prices& prices, std::span<const std::int64_t> shape)
    : table_(roles), prices_(prices), shape_(shape), k_(roles.begin().size()) {
  const Roles& begin = table_.begin();
  const Roles& goal = table_.goal();
  for (std::size_t d = 0; d < shape_.size(); ++d) ends_.push_back(table_.endpoints().end_of(d));
  bool sends = false;
  for (std::size_t a = 0; a < k_; ++a) {
    sends |= begin[a] != goal[a] && begin[a].kind != Role::Kind::replicated;
  }
  roles_.resize(k_);
  const Ends ends = ends_;
  // The last axes, which join the nearest ranks, help first and stand before others.
  for (std::size_t a = k_; a-- > 0;) set_roles(a, sends, ends);
  list_nodes();
}

/// An axis along which the tensor is replicated or partial, before or after, can shard it for a
/// while, so that less is sent over slow links, or reduced more than once.
void Lattice::set_roles(std::size_t a, bool sends, const Ends& ends) {
  const Role& from = table_.begin()[a];
  const Role& to = table_.goal()[a];
  const auto add = [&](const Role& role) {
    roles_[a].id[roles_[a].count++] = table_.number(a, role);
  };
  add(from);
  const bool replicated = from.kind == Role::Kind::replicated && to.kind == Role::Kind::replicated;
  if (table_.ranks(a) == 1 || (from == to && !(replicated && sends))) return;
  const bool sharded = from.kind == Role::Kind::sharded;
  if (!sharded && sends) add_helpers(a, ends);
  if (sharded && to.kind != Role::Kind::replicated) add(Role{});
  add(to);
}

/// Roles that shard and are in no other's way: inside of all others of a dimension that has room.
/// In large meshes only one, so that planning stays quick.
void Lattice::add_helpers(std::size_t a, const Ends& ends) {
  const std::size_t most = k_ <= 3 ? kMostRoles - 3 : k_ == 4 ? 2 : 1;
  std::size_t count = 0;
  for (std::size_t pass = 0; pass < 2; ++pass) {
    for (std::size_t d = 0; d < shape_.size() && count < most; ++d) {
      const bool quiet = changes_nothing(d);
      if (quiet != (pass == 0) || ends_[d] < 0 || shape_[d] < ends[d] * table_.ranks(a)) continue;
      const Role helper{Role::Kind::sharded, static_cast<std::int8_t>(d), ends_[d]};
      roles_[a].id[roles_[a].count++] = table_.number(a, helper);
      ends_[d] *= table_.ranks(a);
      ++count;
    }
  }
}

/// Whether both layouts shard the dimension alike.
bool Lattice::changes_nothing(std::size_t dim) const {
  for (std::size_t a = 0; a < k_; ++a) {
    if (table_.begin()[a] == table_.goal()[a]) continue;
    for (const Role& r : {table_.begin()[a], table_.goal()[a]}) {
      if (r.kind == Role::Kind::sharded && r.dim == static_cast<int>(dim)) return false;
    }
  }
  return true;
}

void Lattice::list_nodes() {
  std::size_t count = 1;
  for (std::size_t a = 0; a < k_; ++a) {
    weight_.push_back(count);
    count *= roles_[a].count;
  }
  nodes_.resize(count);
  for (std::size_t s = 0; s < count; ++s) {
    Node& node = nodes_[s];
    for (std::size_t a = 0; a < k_; ++a) {
      node.place[a] = static_cast<std::uint8_t>(s / weight_[a] % roles_[a].count);
      table_.play(node.state, a, roles_[a].id[node.place[a]]);
    }
    node.legal = table_.is_legal(node.state);
  }
  nodes_.front().legal = nodes_.back().legal = true;
}

/// Calls `visit(t)` for each node that can follow `s`: every axis keeps its role, or goes on to a
/// later one.
template <class Visit>
void Lattice::for_each_after(std::size_t s, const Visit& visit) const {
  const Node& from = nodes_[s];
  std::array<std::uint8_t, kMaxAxes> at = from.place;
  std::size_t t = s;
  while (true) {
    std::size_t a = 0;
    for (; a < k_; ++a) {
      if (at[a] + 1 < roles_[a].count) {
        ++at[a];
        t += weight_[a];
        break;
      }
      t -= weight_[a] * static_cast<std::size_t>(at[a] - from.place[a]);
      at[a] = from.place[a];
    }
    if (a == k_) return;
    if (nodes_[t].legal) visit(t);
  }
}

/// Nodes come after all that lead to them, so one pass in their order is enough.
Path Lattice::shortest() {
  struct Best {
    double seconds = kNever;
    int steps = 0;
    std::size_t before = 0;
  };
  std::vector<Best> best(nodes_.size());
  best[0].seconds = 0;
  const std::size_t goal = nodes_.size() - 1;
  for (std::size_t s = 0; s < goal; ++s) {
    if (best[s].seconds == kNever || best[s].seconds > best[goal].seconds) continue;
    for_each_after(s, [&](std::size_t t) {
      const Price p = prices_.price_within(nodes_[s].state, nodes_[t].state);
      if (p.seconds == kNever) return;
      const double seconds = best[s].seconds + p.seconds;
      const int steps = best[s].steps + (nodes_[s].state.same(nodes_[t].state) ? 0 : 1);
      const double slack = best[t].seconds * 1e-12;
      const bool less = best[t].seconds == kNever || seconds < best[t].seconds - slack;
      if (less || (seconds <= best[t].seconds + slack && steps < best[t].steps)) {
        best[t] = {seconds, steps, s};
      }
    });
  }
  Path path;
  path.seconds = best[goal].seconds;
  if (path.seconds == kNever) return path;
  for (std::size_t s = goal; s != 0; s = best[s].before) path.states.push_back(nodes_[s].state);
  path.states.push_back(nodes_[0].state);
  std::reverse(path.states.begin(), path.states.end());
  return path;
}

std::int64_t Lattice::least_peak() {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> least(nodes_.size(), kMost);
  least[0] = prices_.piece(nodes_[0].state);
  for (std::size_t s = 0; s + 1 < nodes_.size(); ++s) {
    if (least[s] == kMost) continue;
    for_each_after(s, [&](std::size_t t) {
      const Price p = prices_.price(nodes_[s].state, nodes_[t].state);
      if (p.seconds == kNever) return;
      const bool nothing = nodes_[s].state.same(nodes_[t].state);
      const std::int64_t needs =
          nothing ? 0 : prices_.least_peak(p, nodes_[s].state, nodes_[t].state);
      least[t] = std::min(least[t], std::max(least[s], needs));
    });
  }
  return least.back();
}

}  // namespace intarsia
