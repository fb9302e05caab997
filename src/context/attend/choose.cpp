#include "context/attend/choose.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/text.h"
#include "context/attend/layouts.h"
#include "context/mask/work.h"
#include "intarsia/boxes.h"
#include "intarsia/plan.h"
#include "tensor/core/places.h"

namespace intarsia::context {
namespace {

constexpr double kBackward = 2.5;       // of the operations of forward: five products for two
constexpr std::size_t kMostExact = 64;  // ranks: beyond, steps of a ring count as alike

/// The sequence as it is sharded while a schedule computes.
struct Shards {
  Shards(const Layout& layout, const Sizes& sizes, const SequenceOrder& order,
         const SequenceOrder& key_order)
      : places(layout.mesh(), layout.axes_of(kSequence)) {
    const Shape queries{sizes.batch, sizes.heads, sizes.queries, sizes.size};
    const Shape keys{sizes.batch, sizes.heads, sizes.keys, sizes.size};
    for (std::size_t i = 0; i < places.count(); ++i) {
      const auto range = [&](const Shape& shape) {
        const Boxes held = boxes(layout, shape, places.at(i));
        return held.runs(kSequence).empty() ? Range{} : held.runs(kSequence)[0];
      };
      query_runs.push_back(runs_at(order, range(queries)));
      key_places.push_back(range(keys));
      key_runs.push_back(runs_at(key_order, key_places.back()));
    }
    local = local_shape(layout, queries, Coordinate(layout.mesh().axes(), 0));
  }

  Places places;
  std::vector<Runs> query_runs;
  std::vector<Range> key_places;
  std::vector<Runs> key_runs;
  Shape local;  // of the queries of the first rank, which holds most
};

class Pricing {
 public:
  Pricing(const Layout& layout, const Sizes& sizes, const AttentionMask& mask,
          const SequenceOrder& order, const SequenceOrder& key_order, const Topology& topology)
      : layout_(layout),
        sizes_(sizes),
        mask_(mask),
        key_order_(key_order),
        topology_(topology),
        shards_(layout, sizes, order, key_order),
        link_(topology.link(layout.mesh(), layout.axes_of(kSequence))) {}

  bool is_sharded() const { return shards_.places.count() > 1; }

  /// Seconds to compute with so many pairs of queries and keys: of one head and sample each.
  double seconds(double pairs) const {
    const double each = 2.0 * static_cast<double>(sizes_.size + sizes_.value_size) /
                        static_cast<double>(mask_.samples());
    return each * pairs * static_cast<double>(shards_.local[0] * shards_.local[kHeads]) /
           (topology_.flops * topology_.attention);
  }

  /// What the rank with most work computes.
  double compute() const {
    double most = 0;
    for (const Runs& runs : shards_.query_runs) {
      most = std::max(most, pairs(runs, {Run{{0, sizes_.keys}}}));
    }
    return seconds(most);
  }

  /// The same times `factor`, where a rank begins with its own keys, and those of others come after
  /// so many seconds.
  double compute_after(double seconds_to_come, double factor) const {
    double most = 0;
    for (std::size_t i = 0; i < shards_.places.count(); ++i) {
      const double all = seconds(pairs(shards_.query_runs[i], {Run{{0, sizes_.keys}}}));
      const double own = seconds(pairs(shards_.query_runs[i], shards_.key_runs[i]));
      most = std::max(most, std::max(seconds_to_come, factor * own) + factor * (all - own));
    }
    return most;
  }

  /// The same in each step of a ring, in which each rank has the piece of another.
  std::vector<double> compute_by_step() const {
    const std::size_t ranks = shards_.places.count();
    if (ranks > kMostExact) {
      return std::vector<double>(ranks, compute() / static_cast<double>(ranks));
    }
    std::vector<double> out;
    for (std::size_t step = 0; step < ranks; ++step) {
      double most = 0;
      for (std::size_t i = 0; i < ranks; ++i) {
        most = std::max(most,
                        pairs(shards_.query_runs[i], shards_.key_runs[(i + ranks - step) % ranks]));
      }
      out.push_back(seconds(most));
    }
    return out;
  }

  /// Bytes of one key and its value, for all samples and heads of a rank.
  std::int64_t key_bytes() const {
    const std::int64_t group = sizes_.heads / sizes_.key_heads;
    const std::int64_t heads = (shards_.local[kHeads] + group - 1) / group;
    return shards_.local[0] * heads * (sizes_.size + sizes_.sent_value_size) * sizes_.element_bytes;
  }

  /// Own keys are computed with while those of others come.
  AttentionCost gather() const {
    std::int64_t most = 0;
    for (std::size_t i = 0; i < shards_.places.count(); ++i) {
      std::int64_t keys = 0;
      for (const Range& range : places_needed(mask_, shards_.query_runs[i], key_order_, sizes_.keys,
                                              shards_.key_places[i])) {
        keys += range.size();
      }
      most = std::max(most, keys);
    }
    AttentionCost out{.schedule = {.keys = AttentionSchedule::Keys::gather},
                      .bytes = most * key_bytes()};
    const double starts =
        link_.overhead + static_cast<double>(shards_.places.count() - 1) * link_.latency;
    const double once = is_sharded() ? starts + time_of(out.bytes) : 0;
    out.seconds = compute_after(once, 1);
    if (sizes_.gradients) {
      const double back = is_sharded() ? starts + time_of(as_float(out.bytes)) : 0;
      out.seconds += compute_after(once, kBackward) + back;
    }
    return out;
  }

  AttentionCost ring() const {
    const auto ranks = static_cast<std::int64_t>(shards_.places.count());
    std::int64_t longest = 0;
    for (const Range& range : shards_.key_places) longest = std::max(longest, range.size());
    const std::int64_t piece = longest * key_bytes();
    const double keys = link_.overhead + link_.latency + time_of(piece);
    const double grads = link_.overhead + link_.latency + time_of(as_float(piece));
    AttentionCost out{.schedule = {.keys = AttentionSchedule::Keys::ring},
                      .bytes = (ranks - 1) * piece};
    const std::vector<double> each = compute_by_step();
    for (std::size_t step = 0; step < each.size(); ++step) {
      out.seconds += std::max(step + 1 < each.size() ? keys : 0, each[step]);
    }
    if (!sizes_.gradients) return out;
    // Gradients of a piece follow it round: they are sent as soon as a step is computed, and those
    // of the last step go home alone.
    double now = 0;
    double behind = 0;
    for (std::size_t step = 0; step < each.size(); ++step) {
      const double computed = std::max(now + kBackward * each[step], behind);
      behind = computed + grads;
      now = step + 1 < each.size() ? std::max(computed, now + keys) : behind;
    }
    const double sent = static_cast<double>(ranks - 1) * time_of(piece) +
                        static_cast<double>(ranks) * time_of(as_float(piece));
    out.seconds += std::max(now, sent);
    return out;
  }

 private:
  double pairs(const Runs& queries, const Runs& keys) const {
    std::int64_t out = 0;
    for (const Run& q : queries) {
      for (const Run& k : keys) {
        for (std::int64_t s = 0; s < mask_.samples(); ++s) {
          out += pairs_of(mask_, s, q.positions, k.positions, sizes_.keys);
        }
      }
    }
    return static_cast<double>(out);
  }

  double time_of(std::int64_t bytes) const { return static_cast<double>(bytes) / link_.bandwidth; }
  std::int64_t as_float(std::int64_t bytes) const {
    return bytes / sizes_.element_bytes * std::max<std::int64_t>(4, sizes_.element_bytes);
  }

  const Layout& layout_;
  const Sizes& sizes_;
  const AttentionMask& mask_;
  const SequenceOrder& key_order_;
  const Topology& topology_;
  Shards shards_;
  const Link& link_;
};

/// What it costs to exchange the sequence for heads and back.
AttentionCost exchanging_heads(const Layout& from, const Layouts& to, const Sizes& sizes,
                               const Topology& topology) {
  const Coordinate first(from.mesh().axes(), 0);
  AxisList axes;
  std::int64_t ranks = 1;
  for (std::size_t a = 0; a < from.mesh().axes(); ++a) {
    if (from.placement(a) == to.query.placement(a)) continue;
    axes.push_back(static_cast<std::int8_t>(a));
    ranks *= from.mesh().size(a);
  }
  const auto bytes = [&](const Layout& layout, std::int64_t heads, std::int64_t length,
                         std::int64_t size) {
    const Shape shape{sizes.batch, heads, length, size};
    const Shape local = local_shape(layout, shape, first);
    return local[0] * local[1] * local[2] * local[3] * sizes.element_bytes;
  };
  // Of what a rank has afterwards, it had one part in `ranks` before.
  const auto received = [&](std::int64_t all) { return all - all / ranks; };
  AttentionCost out;
  out.bytes = received(bytes(to.query, sizes.heads, sizes.queries, sizes.size)) +
              received(bytes(to.key, sizes.key_heads, sizes.keys, sizes.size)) +
              received(bytes(to.key, sizes.key_heads, sizes.keys, sizes.sent_value_size)) +
              received(bytes(from, sizes.heads, sizes.queries, sizes.value_size));
  const Link& link = topology.link(from.mesh(), axes);
  out.seconds = 4 * (link.overhead + static_cast<double>(ranks - 1) * link.latency) +
                static_cast<double>(out.bytes) / link.bandwidth;
  if (sizes.gradients) out.seconds *= 2;
  return out;
}

/// The sets of axes that shard the sequence, but for the empty one.
std::vector<std::vector<std::string>> sets_of_axes(const Layout& layout) {
  const AxisList axes = layout.axes_of(kSequence);
  std::vector<std::vector<std::string>> out;
  for (std::size_t set = 1; set < (std::size_t{1} << axes.size()); ++set) {
    out.emplace_back();
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if ((set >> i & 1) == 0) continue;
      out.back().push_back(layout.mesh().name(static_cast<std::size_t>(axes[i])));
    }
  }
  return out;
}

AttentionSchedule cheapest(const std::vector<AttentionCost>& costs) {
  return std::min_element(
             costs.begin(), costs.end(),
             [](const AttentionCost& a, const AttentionCost& b) { return a.seconds < b.seconds; })
      ->schedule;
}

bool is_same_set(std::vector<std::string> a, std::vector<std::string> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a == b;
}

/// What was chosen in a world. Counting pairs takes longer than a small attention.
class Choices final : public World::Extension {
 public:
  static Choices& of(World& world) {
    return static_cast<Choices&>(world.extension(
        [](World&) -> std::unique_ptr<Extension> { return std::make_unique<Choices>(); }));
  }

  template <class Choose>
  AttentionSchedule find(const std::string& key, const Topology& topology, const Choose& choose) {
    const std::scoped_lock lock(mutex_);
    if (topology_ != topology || known_.size() >= kMost) known_.clear();
    topology_ = topology;
    const auto known = known_.find(key);
    return known != known_.end() ? known->second : known_.emplace(key, choose()).first->second;
  }

 private:
  static constexpr std::size_t kMost = 1024;
  std::mutex mutex_;
  Topology topology_;
  std::map<std::string, AttentionSchedule> known_;
};

}  // namespace

std::vector<AttentionCost> schedule_costs(const Layout& query, const Sizes& sizes,
                                          const AttentionMask& mask, const SequenceOrder& order,
                                          const SequenceOrder& key_order,
                                          const Topology& topology) {
  const Pricing plain(query, sizes, mask, order, key_order, topology);
  std::vector<AttentionCost> out{plain.gather(), plain.ring()};
  for (auto& names : sets_of_axes(query)) {
    const AttentionSchedule heads{.head_axes = std::move(names)};
    if (!heads_fit(query, heads, sizes.heads)) continue;
    const Layouts layouts = layouts_for(query, query, query, sizes.heads, sizes.key_heads, heads);
    const AttentionCost moved = exchanging_heads(query, layouts, sizes, topology);
    const Pricing rest(layouts.query, sizes, mask, order, key_order, topology);
    for (AttentionCost cost : {rest.gather(), rest.ring()}) {
      cost.schedule.head_axes = heads.head_axes;
      cost.seconds += moved.seconds;
      cost.bytes += moved.bytes;
      out.push_back(std::move(cost));
      if (!rest.is_sharded()) break;  // no keys travel
    }
  }
  return out;
}

AttentionSchedule chosen_schedule(World& world, const AttentionSchedule& asked, const Layout& query,
                                  const Sizes& sizes, const AttentionMask& mask,
                                  const SequenceOrder& order, const SequenceOrder& key_order) {
  if (asked.keys != AttentionSchedule::Keys::automatic || asked.all_heads) return asked;
  const Topology& topology = world.plans().topology();
  const std::string key =
      concat(asked, " ", query, " ", sizes.batch, ",", sizes.heads, ",", sizes.key_heads, ",",
             sizes.queries, ",", sizes.keys, ",", sizes.size, ",", sizes.value_size, ",",
             sizes.element_bytes, ",", sizes.sent_value_size, ",", sizes.gradients, " ",
             mask.hash(), " ", order, " ", key_order);
  return Choices::of(world).find(key, topology, [&] {
    std::vector<AttentionCost> costs =
        schedule_costs(query, sizes, mask, order, key_order, topology);
    if (!asked.head_axes.empty()) {
      std::erase_if(costs, [&](const AttentionCost& cost) {
        return !is_same_set(cost.schedule.head_axes, asked.head_axes);
      });
    }
    return cheapest(costs);
  });
}

}  // namespace intarsia::context
