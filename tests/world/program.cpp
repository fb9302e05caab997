// Checks all collectives: as one process among those that a launcher started, or with
// `--in-process N [--quick]` on N threads. With `--until-lost` it makes collectives without end,
// and says what it is told when another process has gone.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <iostream>
#include <string>

#include "intarsia/collectives.h"
#include "intarsia/error.h"
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

void run_until_lost() {
  const auto world = intarsia::World::connect({.timeout = std::chrono::seconds(60)});
  const intarsia::Comm comm = world->everyone();
  const auto sum = intarsia::Placement::partial();
  try {
    for (std::int64_t round = 0;; ++round) {
      const at::Tensor mine = at::full({1 + round * 7919 % 500'000}, 1.0F);
      (void)intarsia::all_reduce(comm, mine, sum).tensor();
      (void)intarsia::all_gather(comm, mine, 0).tensor();
      if (round == 20) std::cout << "running" << std::endl;
    }
  } catch (const intarsia::WorldError& error) {
    std::cout << error.what() << std::endl;
    ::_exit(3);  // without waiting for who will not say goodbye
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    if (argc > 2 && std::string(argv[1]) == "--in-process") {
      check_in_process(std::stoi(argv[2]), argc > 3 && std::string(argv[3]) == "--quick");
    } else if (argc > 1 && std::string(argv[1]) == "--until-lost") {
      run_until_lost();
    } else {
      check_launched();
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
