#include <algorithm>
#include <deque>
#include <limits>

#include "pipeline/schedule/actions.h"
#include "pipeline/schedule/orders.h"

namespace intarsia {
namespace {

using enum ActionKind;
constexpr double kNever = std::numeric_limits<double>::infinity();

/// Runs all ranks by the clock. At each moment the rank that can begin something first does so.
class Filling {
 public:
  Filling(const Schedule& shape, const Orders& orders, const WeightOptions& options)
      : shape_(shape),
        orders_(orders),
        options_(options),
        forward_end_(shape, kNever),
        backward_end_(shape, kNever),
        ranks_(orders.size()) {}

  std::optional<Orders> run() {
    std::size_t left = 0;
    for (const auto& order : orders_) left += order.size();
    left +=
        static_cast<std::size_t>(shape_.stages()) * static_cast<std::size_t>(shape_.microbatches);
    Orders out(orders_.size());
    for (; left > 0; --left) {
      std::size_t first = 0;
      Choice best;
      for (std::size_t r = 0; r < ranks_.size(); ++r) {
        const Choice choice = next(r);
        if (choice.begin < best.begin) {
          best = choice;
          first = r;
        }
      }
      if (best.begin == kNever) return std::nullopt;
      out[first].push_back(best.action);
      take(first, best);
    }
    return out;
  }

 private:
  struct Rank {
    double free_at = 0;
    std::size_t done = 0;  // of its order
    int live = 0;
    std::deque<Action> put_off;
  };
  struct Choice {
    double begin = kNever;
    Action action;
  };

  double length(const Action& a) const {
    const StageCosts& cost = options_.costs.of(a.stage);
    return a.kind == forward          ? cost.forward
           : a.kind == input_backward ? cost.input_backward
                                      : cost.weight_backward;
  }

  /// When what it needs is there.
  double ready(const Action& a) const {
    const bool is_forward = a.kind == forward;
    const int from = is_forward ? a.stage - 1 : a.stage + 1;
    double at = is_forward ? 0 : forward_end_.at(a.stage, a.microbatch);
    if (from >= 0 && from < shape_.stages()) {
      const double came = (is_forward ? forward_end_ : backward_end_).at(from, a.microbatch);
      at = std::max(at, came + (crosses(shape_, a.stage, from) ? options_.costs.transfer : 0));
    }
    return at;
  }

  Choice next(std::size_t r) const {
    const Rank& rank = ranks_[r];
    Choice out;
    if (rank.done < orders_[r].size()) {
      const Action& a = orders_[r][rank.done];
      if (a.kind != forward || rank.live < options_.most_live) {
        out = {std::max(rank.free_at, ready(a)), a};
      }
    }
    if (rank.put_off.empty()) return out;
    const Action& weights = rank.put_off.front();
    const double gap = out.begin - rank.free_at;
    const bool fills = gap > 0 && gap >= options_.least_gap * length(weights);
    return fills ? Choice{rank.free_at, weights} : out;
  }

  void take(std::size_t r, const Choice& choice) {
    Rank& rank = ranks_[r];
    const Action& a = choice.action;
    rank.free_at = choice.begin + length(a);
    if (a.kind == weight_backward) {
      rank.put_off.pop_front();
      --rank.live;
      return;
    }
    ++rank.done;
    (a.kind == forward ? forward_end_ : backward_end_).at(a.stage, a.microbatch) = rank.free_at;
    if (a.kind == forward) {
      ++rank.live;
    } else {
      rank.put_off.push_back(a);
      rank.put_off.back().kind = weight_backward;
    }
  }

  const Schedule& shape_;
  const Orders& orders_;
  const WeightOptions& options_;
  ByStage<double> forward_end_;
  ByStage<double> backward_end_;
  std::vector<Rank> ranks_;
};

}  // namespace

std::optional<Orders> with_weights(const std::vector<int>& rank_of_stage, int microbatches,
                                   const Orders& orders, const WeightOptions& options) {
  const Schedule shape{
      .name = {}, .microbatches = microbatches, .rank_of_stage = rank_of_stage, .ranks = {}};
  return Filling(shape, orders, options).run();
}

}  // namespace intarsia
