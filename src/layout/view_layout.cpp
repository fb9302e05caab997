// The layout of a view, by factors.
//
// Within a group of dims that hold the same elements before and after, the global index is written
// as a number with mixed digits: each digit ("factor") is either held locally by every rank or
// sharded by one axis. [8@dp=2, 6] has the factors dp:2, 4, 6. A view groups the same factors into
// other dims, so it is legal when the borders of the output dims fall between factors. The layout
// of each output dim is read off its factors: what is to the left of a sharded factor is its split
// factor. Flattened, [8, 6@dp=2] has the factors 8, dp:2, 3, so the 48 is sharded as SS(0,8).
//
// A factor that is sharded unevenly stays one factor: `size` indices in chunks of `chunk`. It can
// be split from the right only by what divides both.
#include <algorithm>
#include <variant>
#include <vector>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/view.h"
#include "layout/chunk.h"

namespace intarsia {
namespace {

struct Factor {
  std::int64_t size = 1;   // how many values this digit takes, over all ranks
  int axis = -1;           // the axis that shards it, or -1: every rank holds all of it
  std::int64_t n = 1;      // the size of the axis
  std::int64_t chunk = 1;  // the values that one rank holds, at most
  bool sharded() const { return axis >= 0; }
  bool even() const { return n * chunk == size; }
};
using Factors = std::vector<Factor>;

/// The axis whose shards stand in the way.
struct Conflict {
  int axis;
};

Factor local(std::int64_t size) { return {size, -1, 1, size}; }

void append_local(Factors& factors, std::int64_t size) {
  if (size == 1) return;
  if (!factors.empty() && !factors.back().sharded()) {
    factors.back() = local(factors.back().size * size);
  } else {
    factors.push_back(local(size));
  }
}

/// Shards a dim by one more axis. The rank holds `length` positions of it so far (on the ranks that
/// hold most). False when the result has no uniform factors: uneven shards of uneven shards, or
/// blocks that do not line up.
bool add_shard(Factors& factors, std::int64_t length, int axis, std::int64_t n,
               std::int64_t split) {
  const std::int64_t block = ceil_div(length, split);
  if (block == 0 || length % block != 0) return false;
  std::int64_t left = length / block;  // positions to the left of the sharded factor
  std::size_t at = 0;
  for (; at < factors.size(); ++at) {
    Factor& f = factors[at];
    if (f.sharded()) {
      // Ranks hold different numbers of an uneven factor: nothing to its right can be found, and
      // nothing of it can be sharded, in the same way on all ranks.
      if (!f.even()) return false;
      continue;
    }
    if (left == 1) break;
    if (left % f.size == 0) {
      left /= f.size;
    } else if (f.size % left == 0) {
      const std::int64_t rest = f.size / left;
      f = local(left);
      factors.insert(factors.begin() + static_cast<std::ptrdiff_t>(at) + 1, local(rest));
      left = 1;
    } else {
      return false;
    }
  }
  if (left != 1) return false;
  if (at == factors.size()) {
    factors.push_back({1, axis, n, 1});
    return true;
  }
  Factor& f = factors[at];
  if (f.size % n == 0) {
    const std::int64_t rest = f.size / n;
    f = {n, axis, n, 1};
    if (rest > 1) {
      factors.insert(factors.begin() + static_cast<std::ptrdiff_t>(at) + 1, local(rest));
    }
    return true;
  }
  if (f.size != block) return false;
  f = {f.size, axis, n, ceil_div(f.size, n)};
  return true;
}

/// The factors of one input dim.
std::variant<Factors, Conflict> factors_of(const Layout& layout, int dim, std::int64_t size) {
  Factors factors;
  append_local(factors, size);
  std::int64_t held = size;
  for (const std::int8_t a : layout.axes_of(dim)) {
    const std::int64_t n = layout.mesh().size(a);
    const std::int64_t split = layout.placement(a).split();
    if (n == 1) continue;  // shards nothing
    if (!add_shard(factors, held, a, n, split)) return Conflict{a};
    held = DimShard{held, n, 0, split}.held();
  }
  return factors;
}

/// The axis of the first sharded factor. Local neighbours are always joined, so factors that a dim
/// cannot be split from have one at their front or right after it.
int first_axis(const Factors& factors) {
  return std::find_if(factors.begin(), factors.end(), [](const Factor& f) { return f.sharded(); })
      ->axis;
}

/// Takes factors from the front for one output dim of `size`.
std::variant<Factors, Conflict> take(Factors& factors, std::int64_t size) {
  Factors out;
  while (size > 1) {
    Factor& f = factors.front();
    if (size % f.size == 0) {
      size /= f.size;
      if (f.sharded()) {
        out.push_back(f);
      } else {
        append_local(out, f.size);
      }
      factors.erase(factors.begin());
      continue;
    }
    const std::int64_t rest = f.size / size;  // stays behind, to the right
    const bool divides = f.size % size == 0;
    if (!f.sharded() && divides) {
      append_local(out, size);
    } else if (f.sharded() && divides && f.chunk % rest == 0) {
      out.push_back({size, f.axis, f.n, f.chunk / rest});
    } else {
      return Conflict{first_axis(factors)};
    }
    f = local(rest);
    if (factors.size() > 1 && !factors[1].sharded()) {
      factors[1] = local(rest * factors[1].size);
      factors.erase(factors.begin());
    }
    break;
  }
  return out;
}

struct AxisShard {
  int axis;
  std::int64_t split;
};

/// Reads off its factors how axes shard an output dim, in an order that is exact for all of them:
/// the even factors from the left up to the first uneven one, then everything to the right of that
/// one (its blocks are complete only before the uneven one is sharded), then the uneven one.
std::optional<Conflict> read_shards(const Factors& factors, std::size_t begin, std::int64_t left,
                                    std::vector<AxisShard>& out) {
  std::size_t i = begin;
  for (; i < factors.size(); ++i) {
    const Factor& f = factors[i];
    if (f.sharded() && !f.even()) break;
    if (f.sharded()) {
      out.push_back({f.axis, left});
    }
    left *= f.sharded() ? f.chunk : f.size;
  }
  if (i == factors.size()) return std::nullopt;
  const Factor& uneven = factors[i];
  if (auto conflict = read_shards(factors, i + 1, left * uneven.size, out)) return conflict;
  std::int64_t right = 1;  // the most that a rank holds to the right
  for (std::size_t j = i + 1; j < factors.size(); ++j) right *= factors[j].chunk;
  // torch.chunk of size * right must give chunks of chunk * right.
  if (ceil_div(uneven.size * right, uneven.n) != uneven.chunk * right) return Conflict{uneven.axis};
  out.push_back({uneven.axis, left});
  return std::nullopt;
}

class Mapping {
 public:
  Mapping(const Layout& layout, const View& view)
      : layout_(layout), view_(view), shards_(view.output().size()) {}

  std::optional<Conflict> group(const View::Group& g) {
    if (g.repeats) return repeat(g);
    if (const auto same = unchanged_dim(g)) {
      for (const std::int8_t a : layout_.axes_of(same->first)) {
        shards_[static_cast<std::size_t>(same->second)].push_back(
            {a, layout_.placement(a).split()});
      }
      return std::nullopt;
    }
    return regroup(g);
  }

  Layout result() const {
    std::vector<Placement> placements(layout_.placements().begin(), layout_.placements().end());
    for (Placement& p : placements) {
      if (p.is_shard()) p = Placement::replicate();
    }
    LayoutOptions options;
    for (std::size_t d = 0; d < shards_.size(); ++d) {
      std::vector<AxisShard> shards;
      for (const int axis : first_rank_only_) {
        if (d == 0) shards.push_back({axis, std::max<std::int64_t>(view_.output()[0], 1)});
      }
      shards.insert(shards.end(), shards_[d].begin(), shards_[d].end());
      std::vector<std::string> order;
      for (const AxisShard& c : shards) {
        placements[static_cast<std::size_t>(c.axis)] =
            Placement::strided_shard(static_cast<int>(d), c.split);
        order.push_back(layout_.mesh().name(static_cast<std::size_t>(c.axis)));
      }
      if (order.size() > 1) options.order.emplace_back(static_cast<int>(d), std::move(order));
    }
    return Layout(layout_.mesh(), placements, options);
  }

 private:
  bool is_sharded(int dim) const { return !layout_.axes_of(dim).empty(); }

  std::optional<Conflict> repeat(const View::Group& g) {
    for (const std::int8_t d : g.in) {
      for (const std::int8_t a : layout_.axes_of(d)) {
        if (layout_.mesh().size(a) == 1) continue;
        if (const auto conflict = keep_on_first_rank(a)) return conflict;
      }
    }
    return std::nullopt;
  }

  /// Only the first rank of the axis holds anything. That can be said on any dim: in blocks of one
  /// index, of which each block's first chunk is all. The axis must be the first that shards the
  /// dim.
  std::optional<Conflict> keep_on_first_rank(int axis) {
    if (view_.output().empty()) return Conflict{axis};
    first_rank_only_.push_back(axis);
    return std::nullopt;
  }

  /// The one input and the one output dim of a group that is the same but for dims of size 1 that
  /// are not sharded.
  std::optional<std::pair<int, int>> unchanged_dim(const View::Group& g) const {
    int in = -1;
    int out = -1;
    for (const std::int8_t d : g.in) {
      if (view_.input()[static_cast<std::size_t>(d)] == 1 && !is_sharded(d)) continue;
      if (std::exchange(in, d) >= 0) return std::nullopt;
    }
    for (const std::int8_t d : g.out) {
      if (view_.output()[static_cast<std::size_t>(d)] == 1 && g.out.size() > 1) continue;
      if (std::exchange(out, d) >= 0) return std::nullopt;
    }
    if (in < 0 || out < 0) return std::nullopt;
    if (view_.input()[static_cast<std::size_t>(in)] !=
        view_.output()[static_cast<std::size_t>(out)]) {
      return std::nullopt;
    }
    return std::pair(in, out);
  }

  std::optional<Conflict> regroup(const View::Group& g) {
    // A tensor without elements: no rank holds any, whatever the layout.
    if (std::count(view_.input().begin(), view_.input().end(), 0) > 0) return std::nullopt;
    Factors factors;
    for (const std::int8_t d : g.in) {
      const std::int64_t size = view_.input()[static_cast<std::size_t>(d)];
      auto found = factors_of(layout_, d, size);
      if (const auto* conflict = std::get_if<Conflict>(&found)) return *conflict;
      for (const Factor& f : std::get<Factors>(found)) {
        if (f.sharded() && f.size == 1) {
          if (const auto conflict = keep_on_first_rank(f.axis)) return conflict;
        } else if (f.sharded()) {
          factors.push_back(f);
        } else {
          append_local(factors, f.size);
        }
      }
    }
    for (const std::int8_t d : g.out) {
      auto taken = take(factors, view_.output()[static_cast<std::size_t>(d)]);
      if (const auto* conflict = std::get_if<Conflict>(&taken)) return *conflict;
      if (auto conflict =
              read_shards(std::get<Factors>(taken), 0, 1, shards_[static_cast<std::size_t>(d)])) {
        return conflict;
      }
    }
    keep_idle_axes(g);
    return std::nullopt;
  }

  /// Axes of one rank shard nothing, so any dim will do; they keep one, as they would on more
  /// ranks.
  void keep_idle_axes(const View::Group& g) {
    for (const std::int8_t d : g.in) {
      for (const std::int8_t a : layout_.axes_of(d)) {
        if (layout_.mesh().size(a) == 1 && !g.out.empty()) {
          shards_[static_cast<std::size_t>(g.out[0])].push_back({a, 1});
        }
      }
    }
  }

  const Layout& layout_;
  const View& view_;
  std::vector<std::vector<AxisShard>> shards_;  // of each output dim, in order
  std::vector<int> first_rank_only_;
};

std::variant<Layout, Conflict> try_view(const Layout& layout, const View& view) {
  Mapping mapping(layout, view);
  for (const View::Group& g : view.groups()) {
    if (const auto conflict = mapping.group(g)) return *conflict;
  }
  return mapping.result();
}

/// The cheapest placement of `axis` with which the view no longer crosses that axis: another even
/// shard (an all-to-all of 1/n of what a gather moves), an uneven one, or Replicate.
Layout without_conflict(const Layout& layout, const View& view, int axis) {
  const auto n = layout.mesh().size(static_cast<std::size_t>(axis));
  const Layout open = layout.with(static_cast<std::size_t>(axis), Placement::replicate());
  const Coordinate origin(layout.mesh().axes(), 0);
  const Shape held = local_shape(open, view.input(), origin);
  std::optional<Layout> uneven;
  for (std::size_t d = 0; d < held.size(); ++d) {
    if (held[d] < n) continue;
    Layout moved = open.with(static_cast<std::size_t>(axis), Placement::shard(static_cast<int>(d)));
    const auto outcome = try_view(moved, view);
    const auto* conflict = std::get_if<Conflict>(&outcome);
    if (moved == layout || (conflict != nullptr && conflict->axis == axis)) continue;
    if (held[d] % n == 0) return moved;
    if (!uneven) uneven = moved;
  }
  return uneven.value_or(open);
}

Crossing explain(const Layout& layout, const View& view, Conflict conflict) {
  Crossing c;
  c.axis = static_cast<std::size_t>(conflict.axis);
  c.dim = layout.placement(c.axis).dim();
  Layout input = layout;
  auto outcome = std::variant<Layout, Conflict>(conflict);
  std::vector<int> moved;
  while (const auto* open = std::get_if<Conflict>(&outcome)) {
    const bool again = std::find(moved.begin(), moved.end(), open->axis) != moved.end();
    moved.push_back(open->axis);
    input = again ? input.with(static_cast<std::size_t>(open->axis), Placement::replicate())
                  : without_conflict(input, view, open->axis);
    outcome = try_view(input, view);
  }
  c.move_to = input;
  c.then = std::get<Layout>(outcome);
  c.why = concat('[', view.name(), "] (", join(view.input()), ") -> (", join(view.output()),
                 ") crosses the sharding of dimension ", c.dim, " by axis '",
                 layout.mesh().name(c.axis), "' (", layout.placement(c.axis), ") in ", layout,
                 "; redistribute to ", c.move_to.placements_text(), " first, the result is then ",
                 c.then.placements_text());
  return c;
}

}  // namespace

ViewedLayout view_layout(const Layout& layout, const View& view) {
  check_dims(view.name(), layout, view.input().size());
  const auto outcome = try_view(layout, view);
  if (const auto* viewed = std::get_if<Layout>(&outcome)) return {*viewed, std::nullopt};
  return {std::nullopt, explain(layout, view, std::get<Conflict>(outcome))};
}

}  // namespace intarsia
