// The guard's ranks as threads of one process.
#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "world/guard/guard.h"

namespace intarsia::testing {

/// Where all ranks of a test wait for each other.
using Meet = std::function<void()>;

/// Runs `of_rank` on one thread for each rank of a world, with its guard.
inline void on_ranks(
    int size,
    const std::function<void(int rank, const std::shared_ptr<Guard>&, const Meet&)>& of_rank) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier<> barrier(size);
  const Meet meet = [&barrier] { barrier.arrive_and_wait(); };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      of_rank(rank, Guard::make(store, rank, size, std::chrono::seconds(20)), meet);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<std::int64_t> all_of(int size) {
  std::vector<std::int64_t> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

}  // namespace intarsia::testing
