// What a plan costs: made for the first time, and asked again of a PlanCache.
//
//     plan_time time MESH DIMS [PAIRS]      mean, median and worst microseconds of make_plan
//     plan_time cached MESH DIMS [PAIRS]    microseconds of PlanCache::plan for a plan it knows
//     plan_time count MESH DIMS PAIRS       makes the plans and nothing else, to be run under
//     callgrind
//     plan_time count_cached MESH DIMS PAIRS   asks 20 times again for each, in `ask_again`
//
// Pairs of layouts are random, of R, S(d) and some P(sum), and depend on the numbers of axes and
// dimensions only: so meshes with as many axes plan the same pairs, for the same shape.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "intarsia/plan.h"

namespace intarsia {
namespace {

using Pair = std::pair<Layout, Layout>;

Layout random_layout(const Mesh& mesh, int dims, std::mt19937_64& random) {
  std::vector<Placement> placements;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const int pick = static_cast<int>(random() % static_cast<std::uint64_t>(4 + 3 * dims));
    placements.push_back(pick == 0  ? Placement::partial()
                         : pick < 4 ? Placement::replicate()
                                    : Placement::shard((pick - 4) / 3));
  }
  std::vector<std::string> names = mesh.names();
  std::shuffle(names.begin(), names.end(), random);
  LayoutOptions options;
  for (int d = 0; d < dims; ++d) {
    std::vector<std::string> order;
    for (const std::string& name : names) {
      if (placements[mesh.axis_index(name)].is_shard(d)) order.push_back(name);
    }
    if (order.size() > 1) options.order.emplace_back(d, order);
  }
  return Layout(mesh, placements, options);
}

std::vector<Pair> random_pairs(const Mesh& mesh, int dims, std::int64_t count) {
  std::mt19937_64 random(1);
  std::vector<Pair> out;
  while (static_cast<std::int64_t>(out.size()) < count) {
    Layout from = random_layout(mesh, dims, random);
    Layout to = random_layout(mesh, dims, random);
    if (from != to) out.emplace_back(std::move(from), std::move(to));
  }
  return out;
}

double microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

void print(const Mesh& mesh, int dims, std::vector<double> times, std::size_t steps) {
  const double mean =
      std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
  std::sort(times.begin(), times.end());
  std::cout << mesh.to_string() << ' ' << mesh.size() << " ranks, " << dims << " dimensions, "
            << times.size() << " pairs: mean " << mean << " us, median " << times[times.size() / 2]
            << ", worst " << times.back() << "; " << steps << " steps\n";
}

[[gnu::noinline]] std::size_t ask_again(PlanCache& cache, const Pair& pair, const Shape& shape,
                                        int calls) {
  std::size_t steps = 0;
  for (int i = 0; i < calls; ++i) {
    steps += cache.plan(pair.first, pair.second, shape, 4)->steps.size();
  }
  return steps;
}

int run(const std::string& what, const Mesh& mesh, int dims, std::int64_t count) {
  const std::vector<Pair> pairs = random_pairs(mesh, dims, count);
  const Shape shape(static_cast<std::size_t>(dims), std::int64_t{1} << 18);
  std::vector<double> times;
  std::size_t steps = 0;
  if (what == "count") {
    for (const auto& [from, to] : pairs) steps += make_plan(from, to, shape)->steps.size();
    std::cout << steps << " steps\n";
    return 0;
  }
  if (what == "time") {
    times.assign(pairs.size(), std::numeric_limits<double>::infinity());
    for (int round = 0; round < 3; ++round) {  // the best of three: others share the cores
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        const auto start = std::chrono::steady_clock::now();
        const auto plan = make_plan(pairs[i].first, pairs[i].second, shape);
        times[i] = std::min(times[i], microseconds_since(start));
        steps += round == 0 ? plan->steps.size() : 0;
      }
    }
    print(mesh, dims, times, steps);
    return 0;
  }
  if (what == "count_cached") {
    constexpr int kCalls = 20;
    PlanCache cache;
    for (const Pair& pair : pairs) {
      (void)cache.plan(pair.first, pair.second, shape, 4);
      steps += ask_again(cache, pair, shape, kCalls);
    }
    std::cout << steps << " steps\n";
    return 0;
  }
  if (what == "cached") {
    constexpr int kCalls = 1000;
    PlanCache cache;
    for (const Pair& pair : pairs) {
      (void)cache.plan(pair.first, pair.second, shape, 4);
      double best = 0;
      for (int round = 0; round < 3; ++round) {
        const auto start = std::chrono::steady_clock::now();
        steps += ask_again(cache, pair, shape, kCalls);
        const double spent = microseconds_since(start) / kCalls;
        best = round == 0 ? spent : std::min(best, spent);
      }
      times.push_back(best);
    }
    print(mesh, dims, times, steps);
    return 0;
  }
  return 2;
}

}  // namespace
}  // namespace intarsia

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "plan_time time|cached|count MESH DIMS [PAIRS]\n";
    return 2;
  }
  const std::int64_t pairs = argc > 4 ? std::stoll(argv[4]) : 500;
  return intarsia::run(argv[1], intarsia::Mesh::parse(argv[2]), std::stoi(argv[3]), pairs);
}
