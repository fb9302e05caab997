// What no way between two states can do without: the bounds that cut the search short.
#include <algorithm>

#include "plan/price.h"

namespace intarsia {

/// The best that any group with an axis offers.
void Prices::read_links() {
  best_.fill({kNever, kNever, 0});
  for (Mask group = 1; group < products_.size(); ++group) {
    const Link& l = link(group);
    for_each_bit(group, [&](std::size_t a) {
      best_[a].latency = std::min(best_[a].latency, l.latency);
      best_[a].overhead = std::min(best_[a].overhead, l.overhead);
      best_[a].bandwidth = std::max(best_[a].bandwidth, l.bandwidth);
    });
  }
  slow_bandwidth_ = kNever;
  all_even_ = true;
  for (const std::int64_t s : shape_) {
    all_even_ = all_even_ && s % static_cast<std::int64_t>(products_.back()) == 0;
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

/// What a rank receives at least on any way where no terms are reduced, if what ranks along the
/// axes `together` have is anybody's of them: by the rank that misses most, and shared among them.
double Prices::least_received(const State& x, const State& y, Mask together) const {
  const Mask old = x.cuts & ~together;
  const Mask now = y.cuts & ~together;
  const double a = bytes_ / products_[now];
  const double share = products_[together];
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
  const double b = bytes_ / products_[old];
  if (apart) return std::max(0.0, a - b) / share;
  return (a - (none ? 0 : b * products_[same] / products_[now])) / share;
}

/// What it takes at least to reduce these terms and get a new piece. One axis after the other, each
/// cuts as soon as its terms are reduced: so all of them receive N - 1 of the smallest pieces that
/// there are, by exchanges or all_reduce; along fast links first. The rest of the new piece arrives
/// after that, shared among the ranks whose terms make the new value.
double Prices::least_to_reduce(const State& y, Mask reduced) const {
  const double part = bytes_ / products_.back();
  const double rest = std::max(0.0, bytes_ / products_[y.cuts | y.terms] - part);
  const double slow = products_[reduced & ~fast_];
  const double fast = products_[reduced & fast_];
  const auto takes = [&](double bytes, double bandwidth) {
    const double copy = topology_->copy_bandwidth;
    return bytes * std::min(1 / bandwidth + 3 / copy,
                            (2 * topology_->all_reduce - relative_) / bandwidth + 1 / copy);
  };
  return rest * relative_ / fast_bandwidth_ + takes((slow - 1) * part, slow_bandwidth_) +
         takes((fast - 1) * slow * part, fast_bandwidth_);
}

double Prices::least(const State& x, const State& y) {
  if (x.same(y)) return 0;
  if (fast_bandwidth_ == 0) read_links();
  const double copy = topology_->copy_bandwidth;
  const double a = bytes_ / products_[y.cuts];
  // Where terms are made, ranks need not hold what others along that axis do.
  const Mask reduced = x.terms & ~y.terms;
  Mask talk = reduced;
  for_each_bit(x.cuts & ~y.terms,
               [&](std::size_t axis) { talk |= x.id[axis] != y.id[axis] ? bit(axis) : Mask{0}; });
  // The last step copies the new piece, or half of that arrives by it.
  const double arrives = all_even_ ? a / 2 * relative_ / fast_bandwidth_ : 0;
  if (talk == 0) return std::min(a / copy, least_start_ + arrives);
  double start = 0;
  for_each_bit(talk, [&](std::size_t axis) {
    start = std::max(start, best_[axis].overhead + best_[axis].latency);
  });
  if (reduced != 0) return start + least_to_reduce(y, reduced);
  const double all = least_received(x, y, y.terms);
  const double slow = fast_ == 0 ? all : std::min(all, least_received(x, y, y.terms | fast_));
  const double fastest = fast_ == 0 ? slow_bandwidth_ : fast_bandwidth_;
  const double sent = relative_ * (slow / slow_bandwidth_ + (all - slow) / fastest);
  if (y.terms != 0) {
    // Terms are made of whole pieces, or more is gathered after; those that stay are not touched.
    const double made = std::min(sent + a / copy, std::max(sent, arrives));
    if ((y.terms & ~x.terms) != 0) return start + made;
    return start + std::min(made, relative_ * least_received(x, y, 0) / fastest);
  }
  // With all axes cutting, what was gathered must be sliced; exchanges copy twice.
  if (y.cuts + 1 == products_.size()) {
    const double exchanged = sent + 2 * all / copy;
    const double gathered = std::max(sent, a * relative_ / fastest) + a / copy;
    return start + std::min(exchanged, gathered);
  }
  return start + sent;
}

}  // namespace intarsia
