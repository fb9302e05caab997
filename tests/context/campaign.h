// Random cases of a program, run in lockstep or by the processes of a launcher, and counted.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "intarsia/lockstep.h"
#include "intarsia/world.h"

namespace intarsia::testing {

/// One case: prints what it is if it is asked to, and throws or says what is wrong.
struct CaseResult {
  std::string text;
  std::string wrong = {};
  bool refused = false;
};
using RunCase = std::function<CaseResult(std::uint64_t seed, World& world)>;

/// PROGRAM [--lockstep RANKS] [--from SEED] [--count N]: without --lockstep, one of the processes
/// that a launcher started. Ends with the number of cases that agree.
inline int campaign(int argc, char** argv, const RunCase& run) {
  std::map<std::string, std::int64_t> given{{"--lockstep", 0}, {"--from", 0}, {"--count", 100}};
  for (int i = 1; i + 1 < argc; i += 2) given.at(argv[i]) = std::atoll(argv[i + 1]);
  const std::int64_t hosted = given["--lockstep"];
  const std::int64_t count = given["--count"];
  const auto world = hosted > 0 ? lockstep_world(hosted) : World::connect();
  const bool speaks = hosted > 0 || world->rank() == 0;
  std::int64_t right = 0;
  std::int64_t refused = 0;
  for (std::int64_t seed = given["--from"]; seed < given["--from"] + count; ++seed) {
    CaseResult result;
    try {
      result = run(static_cast<std::uint64_t>(seed), *world);
    } catch (const std::exception& error) {
      result = {.text = "seed " + std::to_string(seed), .wrong = error.what()};
    }
    if (result.wrong.empty()) ++right;
    if (result.refused) ++refused;
    if (!result.wrong.empty() && speaks) {
      std::cout << result.text << '\n' << result.wrong << std::endl;
    }
  }
  if (speaks) {
    std::cout << right << " of " << count << " cases on " << world->size() << " ranks agree, "
              << refused << " of them by being refused in words" << std::endl;
  }
  return right == count ? 0 : 1;
}

}  // namespace intarsia::testing
