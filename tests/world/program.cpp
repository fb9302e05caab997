// The program that is started under every launcher: meets the others, checks all collectives, leaves.
#include <ATen/Parallel.h>

#include <exception>
#include <iostream>

#include "intarsia/error.h"
#include "world/collectives_check.h"

int main() {
  at::set_num_threads(1);
  try {
    const auto world = intarsia::World::connect({.timeout = std::chrono::seconds(60)});
    const auto checks = intarsia::testing::check_collectives(*world);
    std::cout << "rank " << world->rank() << " of " << world->size() << ": " << checks << " checks, "
              << world->ledger().totals().calls << " calls\n"
              << std::flush;
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
