#include "checkpoint/state/world_ranks.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "intarsia/in_process.h"

namespace intarsia::checkpoint {
namespace {

TEST(WorldRanks, AllGetWhatRankZeroDecides) {
  run_in_process(3, [](World& world) {
    WorldRanks ranks(world, world.everyone());
    EXPECT_EQ(ranks.rank(), world.rank());
    EXPECT_FALSE(ranks.host().empty());
    for (int round = 0; round < 3; ++round) {
      // Short, and longer than what goes at once.
      const std::string said(static_cast<std::size_t>(world.rank() * round * 1000), 'x');
      const std::string verdict = ranks.agree(said, [&](std::span<const std::string> all) {
        EXPECT_EQ(world.rank(), 0);
        return concat(all[0].size(), ' ', all[1].size(), ' ', all[2].size());
      });
      EXPECT_EQ(verdict, concat(0, ' ', 1000 * round, ' ', 2000 * round));
    }
  });
}

TEST(WorldRanks, AWorldOfOneAgreesWithItself) {
  const auto world = World::connect(Rendezvous{});
  WorldRanks ranks(*world, world->everyone());
  EXPECT_EQ(ranks.agree("a", [](std::span<const std::string> all) { return all[0]; }), "a");
}

}  // namespace
}  // namespace intarsia::checkpoint
