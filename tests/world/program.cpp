// Checks all collectives: as one process among those that a launcher started, or with
// `--in-process N [--quick]` on N threads.
#include <ATen/Parallel.h>

#include <atomic>
#include <exception>
#include <iostream>
#include <string>

#include "intarsia/in_process.h"
#include "world/collectives_check.h"

namespace {

void check_in_process(int ranks, bool quick) {
  std::atomic<std::int64_t> checks = 0;
  intarsia::run_in_process(
      ranks,
      [&](intarsia::World& world) { checks += intarsia::testing::check_collectives(world, quick); },
      {.timeout = std::chrono::minutes(5)});
  std::cout << ranks << " ranks in one process: " << checks << " checks\n";
}

void check_launched() {
  const auto world = intarsia::World::connect({.timeout = std::chrono::seconds(60)});
  const auto checks = intarsia::testing::check_collectives(*world);
  std::cout << "rank " + std::to_string(world->rank()) + " of " + std::to_string(world->size()) +
                   ": " + std::to_string(checks) + " checks, " +
                   std::to_string(world->ledger().totals().calls) + " calls\n"
            << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    if (argc > 2 && std::string(argv[1]) == "--in-process") {
      check_in_process(std::stoi(argv[2]), argc > 3 && std::string(argv[3]) == "--quick");
    } else {
      check_launched();
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
