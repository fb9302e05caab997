// All collectives on 64 ranks in one process.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include <atomic>
#include <iostream>

#include "intarsia/in_process.h"
#include "world/collectives_check.h"

TEST(InProcess64, AllCollectives) {
  at::set_num_threads(1);
  std::atomic<std::int64_t> checks = 0;
  intarsia::run_in_process(64, [&](intarsia::World& world) {
    checks += intarsia::testing::check_collectives(world);
  });
  std::cout << "64 ranks: " << checks << " checks\n";
}
