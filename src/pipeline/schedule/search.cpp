#include <algorithm>
#include <array>

#include "base/text.h"
#include "intarsia/error.h"
#include "pipeline/schedule/orders.h"

namespace intarsia {
namespace {

constexpr int kMostChunks = 4;
constexpr int kVChunks = 2;

/// The costs of one of several stages that a rank has in place of one.
ScheduleCosts part_of(ScheduleCosts costs, int chunks) {
  const double part = 1.0 / chunks;
  for (StageCosts& stage : costs.stages) {
    stage.forward *= part;
    stage.input_backward *= part;
    stage.weight_backward *= part;
    stage.activation *= part;
    stage.for_weights *= part;
  }
  return costs;
}

/// The best of what was offered.
class Best {
 public:
  explicit Best(const SearchOptions& options) : options_(options) {}

  void offer(Schedule schedule, const ScheduleCosts& costs) {
    ScheduleTimes times = simulate(schedule, costs);
    const double peak = *std::ranges::max_element(times.peak);
    constexpr double kRounding = 1e-9;
    if (options_.most_bytes > 0 && peak > options_.most_bytes * (1 + kRounding)) return;
    const bool better = !best_ || times.total < best_->times.total * (1 - kRounding) ||
                        (times.total <= best_->times.total * (1 + kRounding) &&
                         peak < *std::ranges::max_element(best_->times.peak) * (1 - kRounding));
    if (better) best_ = {std::move(schedule), costs, std::move(times)};
  }

  std::optional<FoundSchedule> take() && { return std::move(best_); }

 private:
  const SearchOptions& options_;
  std::optional<FoundSchedule> best_;
};

void offer_named(Best& best, const SearchOptions& o) {
  for (const ScheduleKind kind : schedule_kinds()) {
    for (int chunks = 1; chunks <= kMostChunks; ++chunks) {
      const ScheduleShape shape{o.ranks, o.microbatches, chunks};
      if (!refusal(kind, shape)) best.offer(make_schedule(kind, shape), part_of(o.costs, chunks));
    }
  }
}

/// Orders with weight gradients where these costs leave gaps, for any memory between the least and
/// all.
void offer_filled(Best& best, const SearchOptions& o, const std::string& name,
                  const std::vector<int>& stages, const Orders& orders, int chunks) {
  const ScheduleCosts costs = part_of(o.costs, chunks);
  const StageCosts& one = costs.stages[0];
  int most = chunks * o.microbatches;
  if (o.most_bytes > 0 && one.activation > 0) {
    // What is held between I and W is less than an activation, so more may be live than would fit
    // as such; the simulation knows.
    const double least = std::max(std::min(one.activation, one.for_weights), one.activation / 4);
    most = std::min(most, static_cast<int>(o.most_bytes / least) + 1);
  }
  std::optional<Orders> last;
  for (int live = std::min(most, 3 * chunks * o.ranks); live >= 1; --live) {
    bool any = false;
    for (const double gap : {0.0, 0.5, 1.0}) {
      WeightOptions options{live, costs, gap};
      auto filled = with_weights(stages, o.microbatches, orders, options);
      if (!filled) continue;
      any = true;
      if (last && *filled == *last) continue;
      last = filled;
      best.offer(scheduled(concat(name, ", at most ", live, " live"), stages, o.microbatches,
                           std::move(*filled)),
                 costs);
    }
    if (!any) break;  // with less memory neither
  }
}

/// 1F1B with more or fewer forwards before the first backward.
Orders warmed_up(int ranks, int microbatches, int more) {
  Orders out;
  for (int r = 0; r < ranks; ++r) {
    const int first =
        std::clamp(ranks - r + more * (ranks - 1 - r) / std::max(1, ranks - 1), 1, microbatches);
    std::vector<Action> order;
    int f = 0;
    for (; f < first; ++f) {
      order.push_back({.kind = ActionKind::forward, .stage = r, .microbatch = f});
    }
    for (int b = 0; b < microbatches; ++b) {
      order.push_back({.kind = ActionKind::input_backward, .stage = r, .microbatch = b});
      if (f < microbatches) {
        order.push_back({.kind = ActionKind::forward, .stage = r, .microbatch = f++});
      }
    }
    out.push_back(std::move(order));
  }
  return out;
}

void offer_made(Best& best, const SearchOptions& o) {
  const std::vector<int> around = stages_around(o.ranks, 1);
  for (int more = 1 - o.ranks; more < o.ranks; ++more) {
    offer_filled(best, o, concat("1f1b, warmed up by ", more), around,
                 warmed_up(o.ranks, o.microbatches, more), 1);
  }
  if (o.microbatches < o.ranks) return;
  constexpr std::array<std::pair<int, int>, 4> kWays{{{4, 2}, {3, 3}, {2, 1}, {1, 1}}};
  for (const auto& [out, back] : kWays) {
    offer_filled(best, o, concat("v by ", out, " and ", back), stages_there_and_back(o.ranks),
                 v_orders(o.ranks, o.microbatches, out, back), kVChunks);
  }
}

void check_options(std::string_view where, const SearchOptions& o) {
  if (o.ranks < 1 || o.microbatches < 1) {
    fail<ValueError>(where, "ranks and microbatches are at least 1, not ", o.ranks, " and ",
                     o.microbatches);
  }
  if (o.costs.stages.size() != 1) {
    fail<ValueError>(where, "the costs of one stage for all are searched by, not of ",
                     o.costs.stages.size());
  }
}

}  // namespace

std::optional<FoundSchedule> best_named_schedule(const SearchOptions& options) {
  check_options("best_named_schedule", options);
  Best best(options);
  offer_named(best, options);
  return std::move(best).take();
}

std::optional<FoundSchedule> search_schedule(const SearchOptions& options) {
  check_options("search_schedule", options);
  Best best(options);
  offer_named(best, options);
  offer_made(best, options);
  return std::move(best).take();
}

}  // namespace intarsia
