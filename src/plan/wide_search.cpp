#include "plan/wide_search.h"

#include <algorithm>

namespace intarsia {
namespace {

// Larger meshes are not searched to the end, so that planning takes as long as on small ones.
constexpr std::int64_t kMostRanks = 64;
constexpr int kMostPricesIfLarge = 800;
constexpr double kSlack = 1e-12;  // relative: sums in another order

}  // namespace

WideSearch::WideSearch(RoleTable& roles, Prices& prices, Bounds& bounds, const Layout& from,
                       const Layout& to, std::span<const std::int64_t> shape)
    : table_(roles),
      prices_(prices),
      bounds_(bounds),
      from_(from),
      to_(to),
      shape_(shape),
      k_(roles.begin().size()) {
  set_ends();
}

void WideSearch::set_ends() {
  begin_ = goal_ = State{};
  for (std::size_t a = 0; a < k_; ++a) {
    table_.play(begin_, a, table_.number(a, table_.begin()[a]));
    table_.play(goal_, a, table_.number(a, table_.goal()[a]));
  }
}

void WideSearch::add_role(std::size_t axis, const Role& role) {
  if (table_.size() == RoleTable::kMostRoles) return;
  const std::uint8_t id = table_.number(axis, role);
  std::vector<std::uint8_t>& out = roles_[axis];
  if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
}

void WideSearch::list_roles() {
  roles_.resize(k_);
  for (std::size_t a = 0; a < k_; ++a) {
    add_role(a, table_.begin()[a]);
    add_role(a, table_.goal()[a]);
    if (table_.ranks(a) > 1) add_role(a, Role{});
  }
  has_free_digits_ = find_free_digits();
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    for (std::size_t a = 0; a < k_; ++a) {
      if (table_.ranks(a) > 1) add_shards(a, d);
    }
  }
  set_ends();  // again, since they conflict with what came
}

/// Finds a digit for each axis that is in no other's way: inside of all digits of a dimension,
/// which it divides evenly. Best in one dimension that has room for all axes; one that is not
/// sharded, if there is any. Whether there is such a dimension, and all divide evenly.
bool WideSearch::find_free_digits() {
  FixedVector<std::int64_t, kMaxDims> ends;
  std::int64_t ranks = 1;
  for (std::size_t a = 0; a < k_; ++a) ranks *= table_.ranks(a);
  bool even = true;
  std::size_t roomy = shape_.size();
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    const std::int64_t end = table_.endpoints().end_of(d);
    ends.push_back(end);
    even = even && end > 0 && shape_[d] % end == 0;
    if (end < 0 || shape_[d] % (end * ranks) != 0) continue;
    if (roomy == shape_.size() || end == 1 || ends[roomy] != 1) roomy = d;
  }
  free_.resize(k_);
  for (std::size_t a = 0; a < k_; ++a) {
    std::size_t best = roomy;
    for (std::size_t d = 0; d < shape_.size() && best == shape_.size(); ++d) {
      if (ends[d] > 0 && shape_[d] % (ends[d] * table_.ranks(a)) == 0) best = d;
    }
    if (best == shape_.size()) continue;
    free_[a] = {Role::Kind::sharded, static_cast<std::int8_t>(best), ends[best]};
    ends[best] *= table_.ranks(a);
  }
  is_large_ = ranks > kMostRanks;
  return even && (roomy < shape_.size() || is_large_);
}

/// Whether one of the two layouts shards the dimension in blocks.
bool WideSearch::has_blocks(std::size_t dim) const {
  bool blocks = false;
  for (const Layout* layout : {&from_, &to_}) {
    for (const std::int8_t a : layout->axes_of(static_cast<int>(dim))) {
      blocks = blocks || layout->placement(static_cast<std::size_t>(a)).split() > 1;
    }
  }
  return blocks;
}

/// Roles by which an axis can usefully shard a dimension: at the digits that the two layouts fix;
/// in the outermost dimension directly inside of others, so that gathering them only joins rows;
/// and one out of every other's way. Where there is no room for that, they stand inside of others
/// wherever they can.
void WideSearch::add_shards(std::size_t axis, std::size_t dim) {
  FixedVector<std::int64_t, 64> begins;
  const auto add = [&](std::int64_t begin) {
    if (begin * table_.ranks(axis) > shape_[dim]) return;
    if (begins.size() < 64 && std::find(begins.begin(), begins.end(), begin) == begins.end()) {
      begins.push_back(begin);
    }
  };
  // From a number of parts on, inside of other axes.
  const auto add_inside = [&](std::int64_t parts, Mask others) {
    for (Mask some = others;; some = (some - 1) & others) {
      std::int64_t begin = parts;
      for_each_bit(some, [&](std::size_t b) { begin *= table_.ranks(b); });
      add(begin);
      if (some == 0) break;
    }
  };
  const bool inside = dim == 0 || !has_free_digits_;
  const Mask others = (bit(k_) - 1) & ~bit(axis);
  if (inside) add_inside(1, others);
  for (const Roles* roles : {&table_.begin(), &table_.goal()}) {
    for (std::size_t b = 0; b < k_; ++b) {
      const Role& r = (*roles)[b];
      if (r.kind != Role::Kind::sharded || r.dim != static_cast<int>(dim) || r.begin < 0) continue;
      const std::int64_t end = r.begin * table_.ranks(b);
      add(r.begin);
      if (end % table_.ranks(axis) == 0) add(end / table_.ranks(axis));
      if (b == axis) continue;
      // An axis that becomes partial may stand inside of what comes, and become partial there.
      if (table_.goal()[axis].kind == Role::Kind::partial) add(end);
      if (inside) add_inside(end, others & ~bit(b));
    }
  }
  if (free_[axis].dim == static_cast<int>(dim)) add(free_[axis].begin);
  for (const std::int64_t begin : table_.endpoints().begins_of_some(axis, dim)) {
    if (std::find(begins.begin(), begins.end(), begin) == begins.end()) begins.push_back(begin);
  }
  for (const std::int64_t begin : begins) {
    add_role(axis, {Role::Kind::sharded, static_cast<std::int8_t>(dim), begin});
  }
  if (!has_free_digits_ || has_blocks(dim)) add_role(axis, Role::innermost(dim));
}

/// Lists the states that a way of at most so many seconds can lead through, an axis at a time.
void WideSearch::list_nodes(State state, std::size_t axis, double most) {
  if (axis < k_) {
    for (const std::uint8_t id : roles_[axis]) {
      if ((state.conflicts & bit(id)) != 0) continue;
      State next = state;
      table_.play(next, axis, id);
      list_nodes(next, axis + 1, most);
    }
    return;
  }
  if (state.same(begin_) || state.same(goal_)) return;
  const double rest = bounds_.least(state, goal_);
  if (rest >= most || bounds_.least(begin_, state) + rest >= most) return;
  if (table_.is_legal(state)) nodes_.push_back({state, rest});
}

Path WideSearch::improve(const Path& known) {
  double most = known.seconds * (1 - kSlack);
  const double least = bounds_.least(begin_, goal_);
  if (least >= most) return known;
  list_roles();
  nodes_ = {{begin_, least, 0}, {goal_}};
  list_nodes({}, 0, most);
  nodes_[0].open = true;
  while (true) {
    // The most promising; the first of several.
    std::size_t s = nodes_.size();
    double best = most;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].open || nodes_[i].seconds + nodes_[i].rest >= best) continue;
      best = nodes_[i].seconds + nodes_[i].rest;
      s = i;
    }
    if (s == nodes_.size() || s == 1) break;
    if (is_large_ && known.seconds < kNever && prices_asked_ > kMostPricesIfLarge) break;
    expand(s, most);
  }
  if (nodes_[1].seconds == kNever) return known;
  Path path;
  path.seconds = nodes_[1].seconds;
  for (std::size_t s = 1; s != 0; s = nodes_[s].before) path.states.push_back(nodes_[s].state);
  path.states.push_back(begin_);
  std::reverse(path.states.begin(), path.states.end());
  return path;
}

void WideSearch::expand(std::size_t s, double& most) {
  nodes_[s].open = false;
  const double now = nodes_[s].seconds;
  for (std::size_t t = 1; t < nodes_.size(); ++t) {
    Node& next = nodes_[t];
    if (t == s || next.seconds <= now || now + next.rest >= most) continue;
    ++prices_asked_;
    const double seconds = now + prices_.price_within(nodes_[s].state, next.state).seconds;
    if (seconds + next.rest >= most) continue;
    const bool less = seconds < next.seconds * (1 - kSlack);
    const bool shorter = seconds <= next.seconds && nodes_[s].steps + 1 < next.steps;
    if (!less && !shorter) continue;
    next.seconds = seconds;
    next.steps = nodes_[s].steps + 1;
    next.before = s;
    next.open = true;
    if (t == 1) most = seconds * (1 - kSlack);
  }
}

/// Widens what is reached as the bound grows, as in Prim's algorithm.
std::int64_t WideSearch::least_peak() {
  if (nodes_.empty()) {
    list_roles();
    nodes_ = {{begin_}, {goal_}};
    list_nodes({}, 0, kNever);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> least(nodes_.size(), kMost);
  std::vector<bool> done(nodes_.size());
  least[0] = prices_.piece(nodes_[0].state);
  while (true) {
    std::size_t s = nodes_.size();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!done[i] && least[i] != kMost && (s == nodes_.size() || least[i] < least[s])) s = i;
    }
    if (s == nodes_.size() || s == 1) return least[1];
    done[s] = true;
    for (std::size_t t = 1; t < nodes_.size(); ++t) {
      if (done[t]) continue;
      const Price p = prices_.price(nodes_[s].state, nodes_[t].state);
      if (p.seconds == kNever) continue;
      const std::int64_t needs = prices_.least_peak(p, nodes_[s].state, nodes_[t].state);
      least[t] = std::min(least[t], std::max(least[s], needs));
    }
  }
}

}  // namespace intarsia
