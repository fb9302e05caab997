#include "context/mask/tiles.h"

#include <gtest/gtest.h>

#include <set>

#include "context/mask/masks.h"

namespace intarsia::context {
namespace {

using testing::below;
using testing::random_mask;

TEST(Tiles, ACausalSquareIsOneTile) {
  EXPECT_EQ(tiles_of(AttentionMask::causal(), 0, {0, 1000}, {0, 1000}, 1000),
            (std::vector<Tile>{{{0, 1000}, {0, 1000}, TileKind::causal}}));
}

TEST(Tiles, KeysBeforeAreFullAndKeysAfterAreNone) {
  const auto mask = AttentionMask::causal();
  EXPECT_EQ(tiles_of(mask, 0, {500, 600}, {0, 400}, 1000),
            (std::vector<Tile>{{{500, 600}, {0, 400}, TileKind::full}}));
  EXPECT_TRUE(tiles_of(mask, 0, {0, 100}, {100, 200}, 1000).empty());
}

TEST(Tiles, DocumentsLeaveTheirOwnSquares) {
  const auto mask = AttentionMask::causal().documents({0, 300, 700});
  EXPECT_EQ(tiles_of(mask, 0, {300, 700}, {0, 1000}, 1000),
            (std::vector<Tile>{{{300, 700}, {300, 700}, TileKind::causal}}));
}

TEST(Tiles, HoldEveryPairOnceAndNoOther) {
  testing::Random random(7);
  for (int i = 0; i < 300; ++i) {
    const std::int64_t size = 1 + below(random, 500);
    const auto mask = random_mask(random, size);
    const std::int64_t q = below(random, size);
    const std::int64_t k = below(random, size);
    const Range queries{q, q + 1 + below(random, size - q)};
    const Range keys{k, k + 1 + below(random, size - k)};
    std::vector<std::vector<int>> seen(static_cast<std::size_t>(size),
                                       std::vector<int>(static_cast<std::size_t>(size), 0));
    std::int64_t pairs = 0;
    for (const Tile& tile : tiles_of(mask, 0, queries, keys, size)) {
      ASSERT_TRUE(tile.kind != TileKind::partial ||
                  (tile.queries.size() <= kTileQueries && tile.keys.size() <= kTileKeys));
      for (std::int64_t a = tile.queries.begin; a < tile.queries.end; ++a) {
        for (std::int64_t b = tile.keys.begin; b < tile.keys.end; ++b) {
          const bool in_tile =
              tile.kind == TileKind::full ||
              (tile.kind == TileKind::causal && b - tile.keys.begin <= a - tile.queries.begin) ||
              (tile.kind == TileKind::partial && mask.sees(0, a, b));
          if (in_tile) ++seen[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)];
        }
      }
    }
    for (std::int64_t a = queries.begin; a < queries.end; ++a) {
      for (std::int64_t b = keys.begin; b < keys.end; ++b) {
        const int want = mask.sees(0, a, b) ? 1 : 0;
        pairs += want;
        ASSERT_EQ(seen[static_cast<std::size_t>(a)][static_cast<std::size_t>(b)], want)
            << mask.to_string() << " query " << a << " key " << b;
      }
    }
    ASSERT_EQ(pairs_of(mask, 0, queries, keys, size), pairs) << mask.to_string();
  }
}

TEST(Tiles, KeysSeenAreThoseOfAnyQueryOfAnySample) {
  testing::Random random(8);
  for (int i = 0; i < 100; ++i) {
    const std::int64_t size = 1 + below(random, 60);
    const auto mask = random_mask(random, size, 2);
    const std::int64_t q = below(random, size);
    const std::vector<Range> queries{{0, q / 2}, {q, size}};
    std::vector<Range> want;
    for (std::int64_t k = 0; k < size; ++k) {
      bool seen = false;
      for (const Range& range : queries) {
        for (std::int64_t a = range.begin; a < range.end; ++a) {
          for (std::int64_t s = 0; s < mask.samples(); ++s) seen = seen || mask.sees(s, a, k);
        }
      }
      if (!seen) continue;
      if (!want.empty() && want.back().end == k) {
        ++want.back().end;
      } else {
        want.push_back({k, k + 1});
      }
    }
    EXPECT_EQ(keys_seen(mask, queries, size), want) << mask.to_string();
  }
}

TEST(Tiles, BlocksSeenHaveAKeyThatIsSeen) {
  testing::Random random(9);
  for (int i = 0; i < 100; ++i) {
    const std::int64_t size = 1 + below(random, 60);
    const std::int64_t block = 1 + below(random, 9);
    const auto mask = random_mask(random, size, 2);
    const std::int64_t q = below(random, size);
    const std::int64_t sample = mask.samples() - 1;
    std::set<std::int64_t> want;
    for (std::int64_t a = q; a < size; ++a) {
      for (std::int64_t k = 0; k < size; ++k) {
        if (mask.sees(sample, a, k)) want.insert(k / block);
      }
    }
    EXPECT_EQ(blocks_seen(mask, sample, {q, size}, size, block),
              static_cast<std::int64_t>(want.size()))
        << mask.to_string();
  }
}

}  // namespace
}  // namespace intarsia::context
