#include "context/mask/work.h"

#include <gtest/gtest.h>

#include "context/mask/masks.h"

namespace intarsia::context {
namespace {

using testing::below;
using testing::random_mask;

TEST(Work, RunsFollowTheOrder) {
  const auto order = SequenceOrder::head_tail(shard_lengths(8, 2));
  EXPECT_EQ(runs_at(order, {0, 4}), (Runs{{{0, 2}, 0}, {{6, 8}, 2}}));
  EXPECT_EQ(runs_at(order, {3, 6}, 10), (Runs{{{7, 8}, 10}, {{2, 4}, 11}}));
  EXPECT_EQ(runs_at({}, {3, 6}), (Runs{{{3, 6}, 0}}));
  EXPECT_TRUE(runs_at({}, {3, 3}).empty());
}

TEST(Work, TilesHaveTheirPlacesInTensors) {
  const Runs queries{{{4, 8}, 0}, {{0, 4}, 4}};
  const auto work = work_of(AttentionMask::causal(), 0, queries, {{{0, 4}, 7}}, 8);
  ASSERT_EQ(work.size(), 2U);
  EXPECT_EQ(work[0].tile, (Tile{{4, 8}, {0, 4}, TileKind::full}));
  EXPECT_EQ(work[0].query_offset, 0);
  EXPECT_EQ(work[0].key_offset, 7);
  EXPECT_EQ(work[1].tile, (Tile{{0, 4}, {0, 4}, TileKind::causal}));
  EXPECT_EQ(work[1].query_offset, 4);
}

TEST(Work, LimitsHold) {
  testing::Random random(1);
  for (int i = 0; i < 50; ++i) {
    const std::int64_t size = 1 + below(random, 300);
    const auto mask = random_mask(random, size);
    std::int64_t pairs = 0;
    for (const Work& work :
         work_of(mask, 0, {{{0, size}, 0}}, {{{0, size}, 0}}, size, {.queries = 16, .keys = 32})) {
      ASSERT_LE(work.tile.queries.size(), 16);
      ASSERT_LE(work.tile.keys.size(), 32);
      pairs += pairs_of(mask, 0, work.tile.queries, work.tile.keys, size);
    }
    EXPECT_EQ(pairs, pairs_of(mask, 0, {0, size}, {0, size}, size)) << mask.to_string();
  }
}

TEST(Work, OnlyForeignKeysThatAreSeenAreNeeded) {
  const auto window = AttentionMask::window(2, 0);
  EXPECT_EQ(places_needed(window, {{{8, 12}, 0}}, {}, 16, {8, 12}), (std::vector<Range>{{6, 8}}));
  EXPECT_EQ(places_needed(window.sinks(1), {{{8, 12}, 0}}, {}, 16, {8, 12}),
            (std::vector<Range>{{0, 1}, {6, 8}}));
  const auto order = SequenceOrder::head_tail(shard_lengths(16, 2));
  // The first rank has 0..3 and 12..15; it sees all before 15, of which the other has 4..11.
  EXPECT_EQ(places_needed(AttentionMask::causal(), runs_at(order, {0, 8}), order, 16, {0, 8}),
            (std::vector<Range>{{8, 16}}));
  EXPECT_EQ(places_needed(AttentionMask::causal(), runs_at(order, {8, 16}), order, 16, {8, 16}),
            (std::vector<Range>{{0, 4}}));
}

}  // namespace
}  // namespace intarsia::context
