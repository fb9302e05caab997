#include "plan/bounds.h"

#include <algorithm>

namespace intarsia {

Bounds::Bounds(const RoleTable& roles, AxisSets& sets, std::span<const std::int64_t> shape)
    : roles_(roles), sets_(sets), shape_(shape), k_(roles.begin().size()) {
  const Topology& topology = sets.topology();
  relative_ = std::min({1.0, topology.all_gather, topology.all_reduce});
}

/// The best that any group with an axis offers.
void Bounds::read_links() {
  best_.fill({kNever, kNever, 0});
  for (Mask group = 1; group < sets_.count(); ++group) {
    const Link& l = sets_.link(group);
    for_each_bit(group, [&](std::size_t a) {
      best_[a].latency = std::min(best_[a].latency, l.latency);
      best_[a].overhead = std::min(best_[a].overhead, l.overhead);
      best_[a].bandwidth = std::max(best_[a].bandwidth, l.bandwidth);
    });
  }
  slow_bandwidth_ = kNever;
  all_even_ = true;
  for (const std::int64_t s : shape_) {
    all_even_ = all_even_ && s % static_cast<std::int64_t>(sets_.ranks(sets_.all())) == 0;
  }
  for (std::size_t a = 0; a < k_; ++a) {
    slow_bandwidth_ = std::min(slow_bandwidth_, best_[a].bandwidth);
    fast_bandwidth_ = std::max(fast_bandwidth_, best_[a].bandwidth);
  }
  for (std::size_t a = 0; a < k_; ++a) {
    if (best_[a].bandwidth > slow_bandwidth_) fast_ |= bit(a);
    least_start_ = std::min(least_start_, best_[a].overhead + best_[a].latency);
  }
}

/// What a rank receives at least on any way where no partial values are reduced, if what a rank has
/// counts as held by all ranks along the axes `together`: by the rank that misses most, and shared
/// among them.
double Bounds::least_received(const State& x, const State& y, Mask together) const {
  const Mask old = x.sharding_axes & ~together;
  const Mask now = y.sharding_axes & ~together;
  const double a = sets_.piece_bytes(now);
  const double share = sets_.ranks(together);
  Mask same = 0;
  Mask wanted = 0;
  for_each_bit(now, [&](std::size_t axis) { wanted |= bit(y.id[axis]); });
  bool none = false;
  bool apart = false;
  for_each_bit(old, [&](std::size_t axis) {
    const std::size_t id = x.id[axis];
    if (y.id[axis] == id) same |= bit(axis);
    none = none || (roles_.conflicts(id) & wanted) != 0;
    apart = apart || (roles_.apart(id) & wanted) != 0;
  });
  if (same == old) return 0;
  const double b = sets_.piece_bytes(old);
  if (apart) return std::max(0.0, a - b) / share;
  return (a - (none ? 0 : b * sets_.ranks(same) / sets_.ranks(now))) / share;
}

/// What it takes at least to reduce the partial values along these axes and get a new piece. One
/// axis after the other, each shards as soon as its partial values are reduced: so all of them
/// receive N - 1 of the smallest pieces that there are, by exchanges or all_reduce; along fast
/// links first. The rest of the new piece arrives after that, shared among the ranks whose partial
/// values make the new value.
double Bounds::least_to_reduce(const State& y, Mask reduced) const {
  const double part = sets_.piece_bytes(sets_.all());
  const double rest = std::max(0.0, sets_.piece_bytes(y.sharding_axes | y.partial_axes) - part);
  const double slow = sets_.ranks(reduced & ~fast_);
  const double fast = sets_.ranks(reduced & fast_);
  const auto takes = [&](double bytes, double bandwidth) {
    const double copy = sets_.topology().copy_bandwidth;
    return bytes * std::min(1 / bandwidth + 3 / copy,
                            (2 * sets_.topology().all_reduce - relative_) / bandwidth + 1 / copy);
  };
  return rest * relative_ / fast_bandwidth_ + takes((slow - 1) * part, slow_bandwidth_) +
         takes((fast - 1) * slow * part, fast_bandwidth_);
}

double Bounds::least(const State& x, const State& y) {
  if (x.same(y)) return 0;
  if (fast_bandwidth_ == 0) read_links();
  const double copy = sets_.topology().copy_bandwidth;
  const double a = sets_.piece_bytes(y.sharding_axes);
  // Where partial values are made, ranks need not hold what others along that axis do.
  const Mask reduced = x.partial_axes & ~y.partial_axes;
  Mask talk = reduced;
  for_each_bit(x.sharding_axes & ~y.partial_axes,
               [&](std::size_t axis) { talk |= x.id[axis] != y.id[axis] ? bit(axis) : Mask{0}; });
  // The last step copies the new piece, or half of that arrives by it.
  const double arrives = all_even_ ? a / 2 * relative_ / fast_bandwidth_ : 0;
  if (talk == 0) return std::min(a / copy, least_start_ + arrives);
  double start = 0;
  for_each_bit(talk, [&](std::size_t axis) {
    start = std::max(start, best_[axis].overhead + best_[axis].latency);
  });
  if (reduced != 0) return start + least_to_reduce(y, reduced);
  const double all = least_received(x, y, y.partial_axes);
  const double slow =
      fast_ == 0 ? all : std::min(all, least_received(x, y, y.partial_axes | fast_));
  const double fastest = fast_ == 0 ? slow_bandwidth_ : fast_bandwidth_;
  const double sent = relative_ * (slow / slow_bandwidth_ + (all - slow) / fastest);
  if (y.partial_axes != 0) {
    // Partial values are made of full pieces, or more is gathered after; those that stay are not
    // touched.
    const double made = std::min(sent + a / copy, std::max(sent, arrives));
    if ((y.partial_axes & ~x.partial_axes) != 0) return start + made;
    return start + std::min(made, relative_ * least_received(x, y, 0) / fastest);
  }
  // Where all axes shard, what was gathered must be sliced; exchanges copy twice.
  if (y.sharding_axes + 1 == sets_.count()) {
    const double exchanged = sent + 2 * all / copy;
    const double gathered = std::max(sent, a * relative_ / fastest) + a / copy;
    return start + std::min(exchanged, gathered);
  }
  return start + sent;
}

}  // namespace intarsia
