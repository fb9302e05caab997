#include "checkpoint/plan/copy_runs.h"

#include <gtest/gtest.h>

#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::RandomStates;

Part part(const char* layout, const Shape& shape, const Coordinate& at) {
  return part_of(boxes(Layout::parse(layout), shape, at));
}

std::vector<CopyRun> all(CopyRuns runs) {
  std::vector<CopyRun> out;
  while (const auto run = runs.run()) {
    out.push_back(*run);
    runs.advance(run->bytes);
  }
  return out;
}

TEST(CopyRuns, FullRowsAreOneRun) {
  const CopyRuns runs(part("[a=2] S(0)", {8, 3}, {1}), part("[a=1] R", {8, 3}, {0}), 4);
  EXPECT_EQ(runs.numel(), 12);
  EXPECT_EQ(all(runs), (std::vector<CopyRun>{{0, 48, 48}}));
}

TEST(CopyRuns, ColumnsAreOneRunForEachRow) {
  const CopyRuns runs(part("[a=1] R", {2, 6}, {0}), part("[a=3] S(1)", {2, 6}, {2}), 1);
  EXPECT_EQ(all(runs), (std::vector<CopyRun>{{4, 0, 2}, {10, 2, 2}}));
}

TEST(CopyRuns, CanStopInsideARun) {
  CopyRuns runs(part("[a=1] R", {10}, {0}), part("[a=1] R", {10}, {0}), 2);
  runs.advance(6);
  EXPECT_EQ(runs.run(), (CopyRun{6, 6, 14}));
  runs.advance(14);
  EXPECT_FALSE(runs.run());
}

TEST(CopyRuns, NothingInCommonIsNoRun) {
  EXPECT_FALSE(CopyRuns(part("[a=2] S(0)", {4}, {0}), part("[a=2] S(0)", {4}, {1}), 1).run());
  EXPECT_EQ(all(CopyRuns(part("[a=1] R", {}, {0}), part("[a=1] R", {}, {0}), 8)),
            (std::vector<CopyRun>{{0, 0, 8}}));
}

/// Any layout to any other, element by element, in the order of the source.
TEST(CopyRuns, BringEveryElementToItsPlace) {
  RandomStates random(1);
  for (int i = 0; i < 3000; ++i) {
    SavedTensor from = random.tensor("t", 6);
    from.type.dtype = DType::u64;
    const SavedTensor to = random.elsewhere(from, 6);
    for (std::int64_t rank = 0; rank < 6; ++rank) {
      const auto a = from.type.layout.mesh().coordinate_of(rank);
      const auto b = to.type.layout.mesh().coordinate_of(5 - rank);
      if (!a || !b) continue;
      const auto source = intarsia::testing::piece_of(from, rank, 0);
      const auto expected = intarsia::testing::piece_of(to, 5 - rank, 0);
      std::vector<std::byte> copied(expected.size());
      std::vector<bool> written(expected.size() / 8);
      CopyRuns runs(part_of(boxes(from.type.layout, from.type.shape, *a)),
                    part_of(boxes(to.type.layout, to.type.shape, *b)), 8);
      std::uint64_t last = 0;
      std::int64_t elements = 0;
      for (const CopyRun& run : all(runs)) {
        ASSERT_GE(run.from, last);
        last = run.from + run.bytes;
        elements += static_cast<std::int64_t>(run.bytes / 8);
        ASSERT_LE(run.from + run.bytes, source.size());
        ASSERT_LE(run.to + run.bytes, expected.size());
        ASSERT_EQ(0, std::memcmp(source.data() + run.from, expected.data() + run.to, run.bytes));
        for (std::uint64_t e = run.to / 8; e < (run.to + run.bytes) / 8; ++e) {
          ASSERT_FALSE(written[e]);
          written[e] = true;
        }
      }
      ASSERT_EQ(elements, runs.numel());
    }
  }
}

}  // namespace
}  // namespace intarsia::checkpoint
