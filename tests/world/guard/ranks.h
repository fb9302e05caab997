// The guard's ranks as threads of one process.
#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "world/guard/guard.h"

namespace intarsia::testing {

/// Where all ranks of a test wait for each other.
using Meet = std::function<void()>;

using OfRank = std::function<void(int rank, const std::shared_ptr<Guard>&, const Meet&)>;

/// Runs `of_rank` on one thread for each rank of a world, with its guard. `hosts`: of each rank.
inline void on_hosts(const std::vector<std::string>& hosts, const OfRank& of_rank) {
  const int size = static_cast<int>(hosts.size());
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier<> barrier(size);
  const Meet meet = [&barrier] { barrier.arrive_and_wait(); };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string& host = hosts[static_cast<std::size_t>(rank)];
      of_rank(rank, Guard::make(store, rank, size, std::chrono::seconds(20), host), meet);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The same on one host.
inline void on_ranks(int size, const OfRank& of_rank) {
  on_hosts(std::vector<std::string>(static_cast<std::size_t>(size)), of_rank);
}

inline std::vector<std::int64_t> all_of(int size) {
  std::vector<std::int64_t> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(r);
  return ranks;
}

}  // namespace intarsia::testing
