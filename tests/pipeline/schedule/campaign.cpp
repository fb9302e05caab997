// What promises/pipeline ask of schedules, without ranks: grids, faults, searches, times.
//
//   schedule_campaign grid         every generator: legal, and as published
//   schedule_campaign faults       illegal schedules, all refused
//   schedule_campaign search N     beside the best generator, on N points
//   schedule_campaign flat         64 stages x 512 microbatches
#include <array>
#include <cmath>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>

#include "base/text.h"
#include "intarsia/error.h"
#include "pipeline/schedule/random_schedule.h"

namespace intarsia {
namespace {

using enum ActionKind;
using testing::below;
using testing::Random;

int most(const std::vector<int>& of) { return *std::max_element(of.begin(), of.end()); }

// ---- every generator ----

struct Published {
  std::optional<double> bubble = std::nullopt;  ///< in all, where F = I = W = 1 for each stage
  double at_most_bubble = 1e9;
  int live = 1 << 30;  ///< at most
};

/// What is published for a shape, where it holds.
Published published(ScheduleKind kind, int p, int m, int chunks) {
  const double b = 3.0 * (p - 1);
  switch (kind) {
    case ScheduleKind::gpipe:
      return {.bubble = b, .live = m};
    case ScheduleKind::one_f_one_b:
      return {.bubble = b, .live = std::min(p, m)};
    case ScheduleKind::interleaved:
      if (m % p != 0) return {};
      return {.bubble = b, .live = std::min((chunks - 1) * p + 2 * p - 1, m * chunks)};
    case ScheduleKind::looped_bfs:
      if (m < p) return {};
      return {.bubble = b, .live = m * chunks};
    case ScheduleKind::zb_h1:
      if (m < p) return {.live = m};
      return {.bubble = b / 3, .live = p};
    case ScheduleKind::zb_v:
      return {.bubble = b / 3, .live = 2 * p};  // until the last rank can begin: no other gap
    case ScheduleKind::v_half:
      return {.at_most_bubble = b, .live = std::min(2 * p, p + 2)};
    case ScheduleKind::dual_pipe_v:
      if (m < 2 * p) return {};
      return {.bubble = 2.0 * (p - 1), .live = 2 * p + 1};
  }
  return {};
}

int run_grid() {
  constexpr int kMostRanks = 16;
  constexpr int kMostMicrobatches = 32;
  constexpr int kMostChunks = 4;
  int good = 0;
  int wrong = 0;
  int with_formula = 0;
  std::map<std::string, int> refused;
  for (const ScheduleKind kind : schedule_kinds()) {
    int of_kind = 0;
    for (int p = 2; p <= kMostRanks; ++p) {
      for (int m = 1; m <= kMostMicrobatches; ++m) {
        for (int chunks = 1; chunks <= kMostChunks; ++chunks) {
          const ScheduleShape shape{p, m, chunks};
          if (const auto why = refusal(kind, shape)) {
            // Numbers aside.
            ++refused[why->substr(0, why->find(", "))];
            continue;
          }
          const Published want = published(kind, p, m, chunks);
          try {
            const Schedule s = make_schedule(kind, shape);
            const ScheduleFacts facts = check(s);
            const double waits = simulate(s).total - 3.0 * m * s.stages() / p;
            const bool right = (!want.bubble || waits == *want.bubble) &&
                               waits <= want.at_most_bubble && most(facts.live) <= want.live &&
                               Schedule::parse(s.to_string()) == s;
            ++(right ? good : wrong);
            with_formula += want.bubble || want.at_most_bubble < 1e9 ? 1 : 0;
            ++of_kind;
            if (!right) {
              std::cout << to_text(kind) << ' ' << p << " ranks, " << m << " microbatches, "
                        << chunks << " chunks: waits " << waits << ", holds " << most(facts.live)
                        << "\n";
            }
          } catch (const std::exception& error) {
            ++wrong;
            std::cout << error.what() << "\n";
          }
        }
      }
    }
    std::cout << to_text(kind) << ": " << of_kind << " shapes\n";
  }
  for (const auto& [why, count] : refused) std::cout << count << " refused: " << why << "\n";
  std::cout << good << " of " << good + wrong << " schedules are legal and as published ("
            << with_formula << " have a published bubble)" << std::endl;
  return wrong == 0 ? 0 : 1;
}

// ---- faults ----

/// Changes a legal schedule so that it is none, or gives false where there is nothing to change.
struct Fault {
  const char* name;
  std::function<bool(Schedule&, Random&)> plant;
};

/// The place of a random action for which `wanted` holds.
using Place = std::pair<std::size_t, std::size_t>;
std::optional<Place> find(const Schedule& s, Random& random,
                          const std::function<bool(const Action&)>& wanted) {
  std::vector<Place> found;
  for (std::size_t r = 0; r < s.ranks.size(); ++r) {
    for (std::size_t i = 0; i < s.ranks[r].size(); ++i) {
      if (wanted(s.ranks[r][i])) found.emplace_back(r, i);
    }
  }
  if (found.empty()) return std::nullopt;
  return found[static_cast<std::size_t>(below(random, found.size()))];
}

auto of(ActionKind kind) {
  return [kind](const Action& a) { return a.kind == kind; };
}

bool leave_out(Schedule& s, Random& random, ActionKind kind) {
  const auto at = find(s, random, of(kind));
  if (at) s.ranks[at->first].erase(s.ranks[at->first].begin() + static_cast<long>(at->second));
  return at.has_value();
}

bool repeat(Schedule& s, Random& random, ActionKind kind) {
  const auto at = find(s, random, of(kind));
  if (!at) return false;
  auto& rank = s.ranks[at->first];
  rank.push_back(rank[at->second]);
  rank.back().with_next = false;
  return true;
}

/// Brings an action before another of its stage and microbatch that it needs.
bool too_early(Schedule& s, Random& random, ActionKind kind, ActionKind needs) {
  const auto at = find(s, random, of(kind));
  if (!at) return false;
  auto& rank = s.ranks[at->first];
  Action moved = rank[at->second];
  moved.with_next = false;
  const auto other = std::find_if(rank.begin(), rank.end(), [&](const Action& a) {
    return a.kind == needs && a.stage == moved.stage && a.microbatch == moved.microbatch;
  });
  if (other == rank.end() || other > rank.begin() + static_cast<long>(at->second)) return false;
  const auto place = other - rank.begin();
  rank.erase(rank.begin() + static_cast<long>(at->second));
  rank.insert(rank.begin() + place, moved);
  return true;
}

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> out;
    for (const ActionKind kind : {forward, backward, input_backward, weight_backward, send_forward,
                                  receive_forward, send_backward, receive_backward}) {
      out.push_back({"left out", [kind](Schedule& s, Random& r) { return leave_out(s, r, kind); }});
      out.push_back({"twice", [kind](Schedule& s, Random& r) { return repeat(s, r, kind); }});
    }
    for (const auto& [kind, needs] :
         {std::pair(backward, forward), std::pair(input_backward, forward),
          std::pair(weight_backward, input_backward), std::pair(send_forward, forward),
          std::pair(forward, receive_forward), std::pair(backward, receive_backward),
          std::pair(input_backward, receive_backward), std::pair(send_backward, backward)}) {
      out.push_back({"too early", [kind = kind, needs = needs](Schedule& s, Random& r) {
                       return too_early(s, r, kind, needs);
                     }});
    }
    out.push_back({"on another rank", [](Schedule& s, Random& r) {
                     const auto at = find(s, r, of(forward));
                     const std::size_t to = (at->first + 1) % s.ranks.size();
                     if (to == at->first) return false;
                     s.ranks[to].push_back(s.ranks[at->first][at->second]);
                     s.ranks[at->first].erase(s.ranks[at->first].begin() +
                                              static_cast<long>(at->second));
                     return true;
                   }});
    out.push_back({"of no stage", [](Schedule& s, Random& r) {
                     const auto at = find(s, r, of(forward));
                     s.ranks[at->first][at->second].stage = s.stages();
                     return true;
                   }});
    out.push_back({"of no microbatch", [](Schedule& s, Random& r) {
                     const auto at = find(s, r, of(forward));
                     s.ranks[at->first][at->second].microbatch = s.microbatches;
                     return true;
                   }});
    out.push_back({"into a buffer in use", [](Schedule& s, Random& r) {
                     const auto at = find(s, r, of(receive_forward));
                     if (!at) return false;
                     // The one received before on this rank, whose microbatch is not done yet.
                     auto& rank = s.ranks[at->first];
                     for (std::size_t i = at->second; i-- > 0;) {
                       const Action& a = rank[i];
                       if (a.kind == backward || a.kind == weight_backward) return false;
                       if (a.kind != receive_forward) continue;
                       rank[at->second].buffer = a.buffer;
                       return true;
                     }
                     return false;
                   }});
    out.push_back({"without a buffer", [](Schedule& s, Random& r) {
                     const auto at = find(s, r, of(receive_backward));
                     if (at) s.ranks[at->first][at->second].buffer = -1;
                     return at.has_value();
                   }});
    out.push_back({"received in another order", [](Schedule& s, Random& r) {
                     const auto at = find(s, r, of(receive_forward));
                     if (!at) return false;
                     auto& rank = s.ranks[at->first];
                     const Action& first = rank[at->second];
                     for (std::size_t i = at->second + 1; i < rank.size(); ++i) {
                       if (rank[i].kind != receive_forward || rank[i].stage != first.stage)
                         continue;
                       std::swap(rank[at->second], rank[i]);
                       // Both early enough for what uses them.
                       const Action moved = rank[i];
                       rank.erase(rank.begin() + static_cast<long>(i));
                       rank.insert(rank.begin() + static_cast<long>(at->second) + 1, moved);
                       return true;
                     }
                     return false;
                   }});
    out.push_back({"a circle of ranks", [](Schedule& s, Random&) {
                     // Each of two ranks wants the other's gradient before it sends an activation.
                     s = Schedule::parse(
                         "schedule circle\nmicrobatches 2\nstages on ranks 0 1\n"
                         "rank 0: 0F0 0SF0 0RB0@0 0B0 0F1 0SF1 0RB1@0 0B1\n"
                         "rank 1: 1RF0@0 1F0 1RF1@1 1F1 1B0 1SB0 1B1 1SB1\n");
                     return true;
                   }});
    out.push_back({"a pair that needs itself", [](Schedule& s, Random& r) {
                     const auto at = find(s, r, of(input_backward));
                     if (!at) return false;
                     auto& rank = s.ranks[at->first];
                     Action weights = rank[at->second];
                     weights.kind = weight_backward;
                     std::erase(rank, weights);
                     const auto again = std::find(rank.begin(), rank.end(), rank[at->second]);
                     again->with_next = true;
                     rank.insert(again + 1, weights);
                     return true;
                   }});
    out.push_back({"without its parameters", [](Schedule& s, Random& r) {
                     s = with_gathers(s, 1);
                     return leave_out(s, r, gather);
                   }});
    out.push_back({"gathered twice", [](Schedule& s, Random& r) {
                     s = with_gathers(s, 1);
                     const auto at = find(s, r, of(gather));
                     auto& rank = s.ranks[at->first];
                     const Action again = rank[at->second];
                     rank.insert(rank.begin() + static_cast<long>(at->second) + 1, again);
                     return true;
                   }});
    out.push_back({"reduced too early", [](Schedule& s, Random& r) {
                     s = with_gathers(s, 1);
                     const auto at = find(s, r, of(reduce));
                     auto& rank = s.ranks[at->first];
                     const Action moved = rank[at->second];
                     rank.erase(rank.begin() + static_cast<long>(at->second));
                     rank.insert(rank.begin(), moved);
                     return true;
                   }});
    return out;
  }();
  return all;
}

int run_faults() {
  constexpr int kOfEach = 12;
  int planted = 0;
  int refused = 0;
  std::map<std::string, std::pair<int, std::string>> by_name;
  for (const Fault& fault : faults()) {
    int done = 0;
    for (unsigned seed = 0; seed < 400 && done < kOfEach; ++seed) {
      Random random(seed);
      Schedule s = seed % 2 == 0
                       ? testing::random_schedule(seed)
                       : make_schedule(schedule_kinds()[seed / 2 % schedule_kinds().size()],
                                       {2 + below(random, 3), 6, 1});
      if (!fault.plant(s, random)) continue;
      ++done;
      ++planted;
      auto& [count, why] = by_name[fault.name];
      try {
        check(s);
        std::cout << "passed, though " << fault.name << ":\n" << s.to_string();
      } catch (const ValueError& error) {
        ++refused;
        ++count;
        why = error.what();
      }
    }
  }
  for (const auto& [name, found] : by_name) {
    std::cout << name << ": " << found.first << ", such as: " << found.second << "\n";
  }
  std::cout << refused << " of " << planted << " illegal schedules of " << by_name.size()
            << " kinds are refused" << std::endl;
  return refused == planted && planted >= 60 ? 0 : 1;
}

// ---- search ----

int run_search(int points) {
  int found = 0;
  int better = 0;
  int worse = 0;
  int only = 0;
  int neither = 0;
  double sum = 0;
  double best = 1;
  for (int seed = 0; seed < points; ++seed) {
    Random random(static_cast<unsigned>(seed));
    const auto between = [&](double lo, double hi) {
      return std::uniform_real_distribution<>(lo, hi)(random);
    };
    SearchOptions o;
    o.ranks = 2 + below(random, 7);
    o.microbatches = o.ranks + below(random, static_cast<std::size_t>(3 * o.ranks));
    StageCosts& stage = o.costs.stages[0];
    stage = {between(0.7, 1.4), between(0.7, 1.8), between(0.3, 1.2), 1, between(0.2, 1)};
    o.costs.transfer = below(random, 2) == 0 ? 0 : between(0, 0.4);
    o.most_bytes = below(random, 4) == 0 ? 0 : between(0.3, 1.3) * o.ranks;
    const auto named = best_named_schedule(o);
    const auto searched = search_schedule(o);
    if (!searched) {
      ++neither;
      worse += named ? 1 : 0;
      continue;
    }
    check(searched->schedule);
    ++found;
    if (!named) {
      ++only;
      continue;
    }
    const double ratio = searched->times.total / named->times.total;
    worse += ratio > 1 + 1e-9 ? 1 : 0;
    better += ratio < 1 - 1e-6 ? 1 : 0;
    sum += ratio;
    best = std::min(best, ratio);
  }
  std::cout << "of " << points << " points: a schedule for " << found << ", for " << only
            << " of them no generator's fits the memory, for " << neither << " nothing does\n"
            << "time over the best generator's: mean " << sum / std::max(1, found - only)
            << ", least " << best << "\n"
            << worse << " of " << points << " are worse than the best generator, " << better + only
            << " better" << std::endl;
  return worse == 0 && better > 0 ? 0 : 1;
}

// ---- times ----

int run_flat() {
  constexpr int kStages = 64;
  constexpr int kMicrobatches = 512;
  double slowest = 0;
  for (const ScheduleKind kind : schedule_kinds()) {
    ScheduleShape shape{kStages, kMicrobatches, 1};
    if (refusal(kind, shape)) shape = {kStages / 2, kMicrobatches, 2};
    const std::clock_t begin = std::clock();  // of the processor
    const Schedule s = make_schedule(kind, shape);
    const ScheduleFacts facts = check(s);
    const ScheduleTimes times = simulate(s);
    const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    slowest = std::max(slowest, took);
    std::cout << to_text(kind) << ": " << took << " s, " << facts.transfers << " transfers, bubble "
              << times.bubble << "\n";
  }
  std::cout << "64 stages x 512 microbatches: at most " << slowest << " s" << std::endl;
  return 0;
}

int run(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (what == "grid") return run_grid();
  if (what == "faults") return run_faults();
  if (what == "search") return run_search(count > 2 ? std::stoi(arguments[2]) : 200);
  if (what == "flat") return run_flat();
  std::cerr << "schedule_campaign grid|faults|search|flat\n";
  return 2;
}

}  // namespace
}  // namespace intarsia

int main(int count, char** arguments) { return intarsia::run(count, arguments); }
