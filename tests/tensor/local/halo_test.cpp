#include "tensor/local/halo.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "intarsia/communication.h"
#include "tensor/frames.h"
#include "tensor/tensors.h"

namespace intarsia {
namespace {

using testing::counting;
using testing::laid_out;
using testing::Numbers;
using testing::numbers_of;
using testing::row_of;
using Rows = std::vector<Numbers>;

const Pieces& pieces_of(const at::Tensor& t) { return impl_of(t).pieces(); }

Halo halo_of(const at::Tensor& t, std::size_t dim, const Halo::Needs& needs) {
  return {world_of(t), "aten::op", impl_of(t).spec(), dim, needs};
}

/// What the rank at this place needs.
Halo::Needs by_place(const std::vector<Halo::Runs>& needs) {
  return [needs](const Coordinate& at) { return needs[static_cast<std::size_t>(at[0])]; };
}

// 5 elements over 3 ranks are [0,2) [2,4) [4,5); each rank needs one more on either side.
const std::vector<Halo::Runs> kNeighbours = {{{0, 3}}, {{1, 5}}, {{3, 5}}};

TEST(Halo, FetchesWhatIsBesideTheEdges) {
  const Lockstep lockstep("[a=3]");
  const at::Tensor x = laid_out(counting({5}), "S(0)", lockstep);
  const Pieces windows = halo_of(x, 0, by_place(kNeighbours)).fetch(pieces_of(x));
  EXPECT_EQ(numbers_of(windows), (Rows{{0, 1, 2}, {1, 2, 3, 4}, {3, 4}}));
}

TEST(Halo, GivesBackTheSumsOfAllWindows) {
  const Lockstep lockstep("[a=3]");
  const at::Tensor x = laid_out(counting({5}), "S(0)", lockstep);
  const Pieces windows{row_of({1, 2, 3}), row_of({10, 20, 30, 40}), row_of({100, 200})};
  const Pieces home = halo_of(x, 0, by_place(kNeighbours)).give_back(windows);
  EXPECT_EQ(numbers_of(home), (Rows{{1, 12}, {23, 130}, {240}}));
}

TEST(Halo, ARankThatHasAllThatItNeedsGetsItsPieceItself) {
  const Lockstep lockstep("[a=3]");
  const at::Tensor x = laid_out(counting({5}), "S(0)", lockstep);
  const Halo own = halo_of(x, 0, by_place({{{0, 2}}, {{2, 4}}, {{4, 5}}}));
  const Pieces same = own.fetch(pieces_of(x));
  for (std::size_t m = 0; m < 3; ++m) EXPECT_TRUE(same[m].is_same(pieces_of(x)[m]));
  EXPECT_EQ(numbers_of(own.give_back(pieces_of(x))), (Rows{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(bill(lockstep.world()).count(), 0U);
}

TEST(Halo, RunsStandInTheWindowInTheirOrder) {
  const Lockstep lockstep("[a=3]");
  const at::Tensor x = laid_out(counting({5}), "S(0)", lockstep);
  const Halo halo = halo_of(x, 0, by_place({{{3, 5}, {0, 1}}, {}, {{4, 5}, {1, 3}}}));
  EXPECT_EQ(numbers_of(halo.fetch(pieces_of(x))), (Rows{{3, 4, 0}, {}, {4, 1, 2}}));
  const Pieces home = halo.give_back({row_of({1, 2, 3}), row_of({}), row_of({10, 20, 30})});
  EXPECT_EQ(numbers_of(home), (Rows{{3, 20}, {30, 1}, {12}}));
}

TEST(Halo, ARankWithoutElementsMayNeedThoseOfOthers) {
  const Lockstep lockstep("[a=3]");
  const at::Tensor x = laid_out(row_of({5, 7}), "S(0)", lockstep);
  const Halo halo = halo_of(x, 0, by_place({{}, {{1, 2}}, {{0, 2}}}));
  EXPECT_EQ(numbers_of(halo.fetch(pieces_of(x))), (Rows{{}, {7}, {5, 7}}));
  const Pieces home = halo.give_back({row_of({}), row_of({10}), row_of({1, 2})});
  EXPECT_EQ(numbers_of(home), (Rows{{1}, {12}, {}}));
}

TEST(Halo, SendsOnlyAlongTheAxesThatShardTheDimension) {
  const Lockstep lockstep("[a=2,b=2]");
  const at::Tensor x = laid_out(counting({4, 2}), "S(1),S(0)", lockstep);
  const Halo halo = halo_of(x, 0, [](const Coordinate& at) -> Halo::Runs {
    return {at[1] == 0 ? Range{0, 3} : Range{2, 4}};
  });
  // By rank: column 0 and 1, each above and below.
  EXPECT_EQ(numbers_of(halo.fetch(pieces_of(x))), (Rows{{0, 2, 4}, {4, 6}, {1, 3, 5}, {5, 7}}));
  const at::Tensor turned = laid_out(counting({4}), "S(0),S(0) | 0:b>a", lockstep);
  const Halo all = halo_of(turned, 0, [](const Coordinate&) { return Halo::Runs{{0, 4}}; });
  for (const Numbers& window : numbers_of(all.fetch(pieces_of(turned)))) {
    EXPECT_EQ(window, (Numbers{0, 1, 2, 3}));
  }
}

TEST(Halo, ItsBillCountsWhatOthersNeed) {
  const Lockstep lockstep("[a=3]");
  const at::Tensor x = laid_out(counting({5}), "S(0)", lockstep);
  halo_of(x, 0, by_place(kNeighbours)).fetch(pieces_of(x));
  const Bill sent = bill(lockstep.world());
  ASSERT_EQ(sent.entries.size(), 1U);
  EXPECT_EQ(sent.entries[0].op, "aten::op");
  EXPECT_EQ(sent.entries[0].axis, "a");
  EXPECT_EQ(sent.entries[0].transition, "halo");
  EXPECT_EQ(sent.entries[0].bytes, 4 * sizeof(double));  // 2 to rank 0, 1 and 4 to rank 1, 3
}

TEST(Halo, RanksOfTheirOwnFetchTheSame) {
  const Mesh mesh = Mesh::parse("[a=3]");
  const Rows expected{{0, 1, 2}, {1, 2, 3, 4}, {3, 4}};
  testing::on_mesh(mesh, [&](World& world) {
    const at::Tensor x = distribute(counting({5}), Layout::parse("S(0)", mesh), world);
    const Pieces window = halo_of(x, 0, by_place(kNeighbours)).fetch(pieces_of(x));
    EXPECT_EQ(numbers_of(window), Rows{expected[static_cast<std::size_t>(world.rank())]});
  });
}

}  // namespace
}  // namespace intarsia
