#include "tensor/core/cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace intarsia {
namespace {

using Words = std::vector<std::uint64_t>;
using Cache = BoundedCache<int>;

// Tests choose the hash themselves. Its four highest bits name one of the cache's eight parts, its
// lowest bits a chain of values in there: hashes that are multiples of 16 share one chain here.
constexpr std::uint64_t kNextPart = std::uint64_t{1} << 60;

void insert(Cache& cache, std::uint64_t hash, int value) {
  cache.insert(Words{hash}, hash, std::make_shared<const int>(value));
}

/// The value, or -1.
int find(Cache& cache, std::uint64_t hash) {
  const auto found = cache.find(Words{hash}, hash);
  return found ? *found : -1;
}

TEST(BoundedCache, CountsHitsAndMisses) {
  Cache cache(80);
  EXPECT_EQ(find(cache, 3), -1);
  insert(cache, 3, 30);
  EXPECT_EQ(find(cache, 3), 30);
  EXPECT_EQ(find(cache, 3), 30);
  EXPECT_EQ(find(cache, 4), -1);
  const CacheCounters counters = cache.counters();
  EXPECT_EQ(counters.hits, 2U);
  EXPECT_EQ(counters.misses, 2U);
  EXPECT_EQ(counters.entries, 1U);
  EXPECT_EQ(counters.limit, 80U);
  EXPECT_EQ(counters.evictions, 0U);
}

TEST(BoundedCache, KeepsKeysOfOneHashApart) {
  Cache cache(80);
  const std::vector<Words> keys{{1, 2}, {1, 3}, {1}, {1, 2, 0}, {}};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(cache.find(keys[i], 7), nullptr);
    cache.insert(keys[i], 7, std::make_shared<const int>(static_cast<int>(i)));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(*cache.find(keys[i], 7), static_cast<int>(i));
  }
}

TEST(BoundedCache, TheFirstValueOfAKeyStays) {
  Cache cache(80);
  insert(cache, 3, 30);
  insert(cache, 3, 31);  // as if another thread had been quicker
  EXPECT_EQ(find(cache, 3), 30);
  EXPECT_EQ(cache.counters().entries, 1U);
}

TEST(BoundedCache, EachPartHoldsItsShareOfTheLimit) {
  Cache cache(16);  // two in each part
  for (std::uint64_t i = 0; i < 5; ++i) insert(cache, i, 1);
  EXPECT_EQ(cache.counters().entries, 2U);
  EXPECT_EQ(cache.counters().evictions, 3U);
  insert(cache, kNextPart, 1);
  EXPECT_EQ(cache.counters().entries, 3U);

  Cache small(3);  // less than its parts: one in each
  for (std::uint64_t i = 0; i < 24; ++i) insert(small, i % 8 * kNextPart + i, 1);
  EXPECT_EQ(small.counters().entries, 8U);
  EXPECT_EQ(small.counters().evictions, 16U);
  EXPECT_EQ(small.counters().limit, 3U);
}

TEST(BoundedCache, WhatWasNotUsedLatelyMakesRoom) {
  Cache cache(24);  // three in each part
  for (const std::uint64_t i : {1, 2, 3}) insert(cache, 16 * i, static_cast<int>(i));
  insert(cache, 16 * 4, 4);  // all were used, so the oldest goes
  EXPECT_EQ(find(cache, 16 * 1), -1);
  EXPECT_EQ(find(cache, 16 * 2), 2);
  insert(cache, 16 * 5, 5);  // of 2, 3 and 4, only 3 was not used since
  EXPECT_EQ(find(cache, 16 * 2), 2);
  EXPECT_EQ(find(cache, 16 * 3), -1);
  EXPECT_EQ(find(cache, 16 * 4), 4);
  EXPECT_EQ(find(cache, 16 * 5), 5);
}

TEST(BoundedCache, AnEvictedValueLivesWhileItIsUsed) {
  Cache cache(8);
  auto value = std::make_shared<const int>(30);
  const std::weak_ptr<const int> watch = value;
  cache.insert(Words{3}, 3, std::move(value));
  auto used = cache.find(Words{3}, 3);
  insert(cache, 4, 40);
  EXPECT_EQ(find(cache, 3), -1);
  EXPECT_EQ(*used, 30);
  used.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(BoundedCache, ClearsWhileValuesAreInUse) {
  Cache cache(24);
  for (const std::uint64_t i : {1, 2, 3}) insert(cache, 16 * i, static_cast<int>(i));
  const auto used = cache.find(Words{16}, 16);
  const std::weak_ptr<const int> unused = cache.find(Words{32}, 32);
  cache.clear();
  EXPECT_EQ(*used, 1);
  EXPECT_TRUE(unused.expired());
  EXPECT_EQ(cache.counters().entries, 0U);
  EXPECT_EQ(cache.counters().hits, 2U) << "what happened stays counted";
  EXPECT_EQ(cache.counters().evictions, 0U);
  // It takes as many as before.
  for (const std::uint64_t i : {1, 2, 3, 4}) insert(cache, 16 * i, static_cast<int>(10 * i));
  EXPECT_EQ(cache.counters().entries, 3U);
  EXPECT_EQ(find(cache, 16 * 4), 40);
}

TEST(BoundedCache, AnotherLimitClears) {
  Cache cache(8);
  insert(cache, 1, 10);
  cache.set_limit(80 * 8);  // more than the chains there were
  EXPECT_EQ(find(cache, 1), -1);
  for (int i = 0; i < 81; ++i) insert(cache, static_cast<std::uint64_t>(i), i);
  EXPECT_EQ(cache.counters().entries, 80U);
  EXPECT_EQ(cache.counters().evictions, 1U);
  EXPECT_EQ(cache.counters().limit, 640U);
  EXPECT_EQ(find(cache, 80), 80);
}

TEST(BoundedCache, HashesDependOnOrderAndCountAndUseAllParts) {
  EXPECT_NE(Cache::hash(Words{1, 2}), Cache::hash(Words{2, 1}));
  EXPECT_NE(Cache::hash(Words{1}), Cache::hash(Words{1, 0}));
  EXPECT_NE(Cache::hash(Words{}), Cache::hash(Words{0}));
  Cache cache(8 * 64);
  for (std::uint64_t i = 0; i < 256; ++i) {  // 32 in each part, where they spread evenly
    cache.insert(Words{i}, Cache::hash(Words{i}), std::make_shared<const int>(0));
  }
  EXPECT_EQ(cache.counters().evictions, 0U);
}

TEST(BoundedCache, TwoThreadsFindInsertAndClear) {
  constexpr std::uint64_t kKeys = 100;
  constexpr int kRounds = 5000;
  Cache cache(48);
  std::uint64_t wrong[2] = {0, 0};
  const auto work = [&](std::size_t thread) {
    for (int i = 0; i < kRounds; ++i) {
      const std::uint64_t n = static_cast<std::uint64_t>(i) * (thread + 7) % kKeys;
      const Words key{n};
      const auto found = cache.find(key, Cache::hash(key));
      if (!found) {
        cache.insert(key, Cache::hash(key), std::make_shared<const int>(static_cast<int>(n)));
      } else if (*found != static_cast<int>(n)) {
        ++wrong[thread];
      }
      if (i % 500 == 499) cache.clear();
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  EXPECT_EQ(wrong[0] + wrong[1], 0U);
  const CacheCounters counters = cache.counters();
  EXPECT_EQ(counters.hits + counters.misses, 2U * kRounds);
  EXPECT_GT(counters.hits, 0U);
  EXPECT_LE(counters.entries, 48U);
}

TEST(BoundedCache, LimitsChangeWhileValuesAreAdded) {
  BoundedCache<int> cache(64);
  std::atomic<bool> stop = false;
  std::thread adds([&] {
    for (std::uint64_t i = 0; !stop; ++i) {
      const std::uint64_t words[] = {i % 5000};
      const std::uint64_t hash = BoundedCache<int>::hash(words);
      if (cache.find(words, hash) == nullptr) cache.insert(words, hash, std::make_shared<int>(1));
    }
  });
  for (int i = 0; i < 2000; ++i) cache.set_limit(64 + static_cast<std::size_t>(i % 2) * 64);
  stop = true;
  adds.join();
  EXPECT_LE(cache.counters().entries, 128U);
}

}  // namespace
}  // namespace intarsia
