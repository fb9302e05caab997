#include "world/session/hosted_coordinates.h"

#include <gtest/gtest.h>

#include "intarsia/lockstep.h"

namespace intarsia {
namespace {

using Coordinates = std::vector<Coordinate>;

std::shared_ptr<World> hosting(std::vector<std::int64_t> ranks, std::int64_t size) {
  return World::assemble({.hosted = std::move(ranks), .size = size});
}

TEST(HostedCoordinates, OneRankStandsAtOneCoordinate) {
  const auto world = hosting({4}, 6);
  EXPECT_EQ(hosted_coordinates(*world, Mesh::parse("[dp=2,tp=3]")), (Coordinates{{1, 1}}));
  EXPECT_EQ(hosted_coordinates(*world, Mesh::parse("[tp=3:1,dp=2:3]")), (Coordinates{{1, 1}}));
  EXPECT_EQ(hosted_coordinates(*world, Mesh::parse("[x=2]+3")), (Coordinates{{1}}));
}

TEST(HostedCoordinates, AllComeInTheOrderOfRanks) {
  const Lockstep lockstep("[dp=2,tp=2]");
  EXPECT_EQ(hosted_coordinates(lockstep.world(), lockstep.mesh()),
            (Coordinates{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
  // Rank 0 stands at 1, rank 1 at 3, rank 2 at 0 and rank 3 at 2.
  EXPECT_EQ(hosted_coordinates(lockstep.world(), Mesh::parse("[x=4]{2,0,3,1}")),
            (Coordinates{{1}, {3}, {0}, {2}}));
}

TEST(HostedCoordinates, RanksOutsideTheMeshHaveNone) {
  EXPECT_EQ(hosted_coordinates(*hosting({2}, 4), Mesh::parse("[x=2]")), Coordinates{});
  const Lockstep lockstep("[x=4]");
  EXPECT_EQ(hosted_coordinates(lockstep.world(), Mesh::parse("[x=2:2]+1")),
            (Coordinates{{0}, {1}}));
}

TEST(HostedCoordinates, AMeshWithoutAxesHasRankZero) {
  EXPECT_EQ(hosted_coordinates(*hosting({0}, 2), Mesh()), Coordinates{Coordinate()});
  EXPECT_EQ(hosted_coordinates(*hosting({1}, 2), Mesh()), Coordinates{});
  EXPECT_EQ(hosted_coordinates(*hosting({}, 2), Mesh()), Coordinates{});
}

}  // namespace
}  // namespace intarsia
