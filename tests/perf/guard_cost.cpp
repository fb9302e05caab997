// What the guard costs a call, beside members that have made it before:
//
//     guard_cost        prints `4 ranks: 143 ns` for groups of several sizes; medians of rounds
//
// A call is noted and compared, and compared once more as before its result is used. The other
// ranks are noted by another thread, so that their notes come from another core's cache.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "world/guard/guard.h"

namespace {

using namespace intarsia;
using Clock = std::chrono::steady_clock;
constexpr int kCalls = 60;  // all of them still noted
constexpr int kRounds = 400;

std::vector<std::shared_ptr<Guard>> guards(int ranks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::shared_ptr<Guard>> out(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      out[static_cast<std::size_t>(r)] = Guard::make(store, r, ranks, std::chrono::seconds(60));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

void make_calls(GuardedGroup& group) {
  for (int i = 0; i < kCalls; ++i) {
    group.compare(group.enter({"all_reduce (sum) of Float f32[4096, 4096] P(sum)@x for aten::mm",
                               4096, "layers.7.feed_forward.w2"}));
  }
}

double nanoseconds(int ranks) {
  const auto all = guards(ranks);
  std::vector<std::int64_t> members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  std::vector<std::shared_ptr<GuardedGroup>> groups;
  for (const auto& guard : all) groups.push_back(guard->join("[g=4]", members));
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    std::thread([&] {
      for (std::size_t r = 1; r < groups.size(); ++r) make_calls(*groups[r]);
    }).join();
    const auto begin = Clock::now();
    make_calls(*groups[0]);
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] / kCalls;
}

}  // namespace

int main() {
  for (const int ranks : {2, 4, 8}) {
    std::cout << ranks << " ranks: " << static_cast<int>(nanoseconds(ranks)) << " ns" << std::endl;
  }
  return 0;
}
