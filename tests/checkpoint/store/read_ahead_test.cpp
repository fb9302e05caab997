#include "checkpoint/store/read_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <stdexcept>
#include <thread>

namespace intarsia::checkpoint {
namespace {

constexpr std::uint64_t kBlock = std::uint64_t{1} << 20;

std::byte byte_at(std::uint64_t offset) {
  return static_cast<std::byte>(offset * 31 + offset / 977);
}

/// A file that is slow, counts, and may have a place that cannot be read.
struct Slow {
  std::atomic<int> reads{0};
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  std::uint64_t broken = ~std::uint64_t{0};

  void fetch(std::uint64_t offset, std::span<std::byte> into) {
    ++reads;
    const int at_once = ++now;
    int seen = most;
    while (at_once > seen && !most.compare_exchange_weak(seen, at_once)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --now;
    if (offset <= broken && broken < offset + into.size()) throw std::runtime_error("broken");
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = byte_at(offset + i);
  }
  ReadAhead::Fetch fetcher() {
    return [this](std::uint64_t offset, std::span<std::byte> into) { fetch(offset, into); };
  }
};

void expect_bytes(ReadAhead& file, std::uint64_t offset, std::size_t length) {
  std::vector<std::byte> got(length);
  file.read(offset, got);
  for (std::size_t i = 0; i < length; i += 997) ASSERT_EQ(got[i], byte_at(offset + i));
}

TEST(ReadAhead, ReadsInOrderTravelTogether) {
  Slow slow;
  const std::uint64_t bytes = 20 * kBlock + 5;
  {
    ReadAhead file(bytes, slow.fetcher());
    for (std::uint64_t at = 0; at < bytes; at += kBlock) {
      expect_bytes(file, at, std::min(kBlock, bytes - at));
    }
  }
  EXPECT_EQ(slow.reads, 21);  // none twice
  EXPECT_GT(slow.most, 2);
}

TEST(ReadAhead, ShortReadsAndJumpsAreReadAlone) {
  Slow slow;
  ReadAhead file(20 * kBlock, slow.fetcher());
  for (const std::uint64_t at : {3, 9, 1, 7}) expect_bytes(file, at * kBlock, kBlock);
  for (std::uint64_t at = 0; at < 1000; at += 100) expect_bytes(file, at, 100);
  EXPECT_EQ(slow.reads, 14);
  EXPECT_EQ(slow.most, 1);
}

TEST(ReadAhead, AnyOrderGivesTheSameBytes) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    Slow slow;
    const std::uint64_t bytes = 9 * kBlock + random() % kBlock;
    ReadAhead file(bytes, slow.fetcher());
    std::uint64_t at = 0;
    for (int i = 0; i < 15; ++i) {
      if (random() % 4 == 0 || at >= bytes) at = random() % bytes;
      const std::uint64_t length =
          std::min(bytes - at, random() % 2 ? kBlock : random() % (2 * kBlock));
      expect_bytes(file, at, length);
      at += length;
    }
  }
}

TEST(ReadAhead, AnErrorIsThatOfItsOwnRead) {
  Slow slow;
  slow.broken = 3 * kBlock + 7;
  ReadAhead file(8 * kBlock, slow.fetcher());
  for (std::uint64_t i = 0; i < 3; ++i) expect_bytes(file, i * kBlock, kBlock);
  std::vector<std::byte> got(kBlock);
  EXPECT_THROW(file.read(3 * kBlock, got), std::runtime_error);
  expect_bytes(file, 4 * kBlock, kBlock);
  slow.broken = ~std::uint64_t{0};
  expect_bytes(file, 3 * kBlock, kBlock);
}

TEST(ReadAhead, WhatIsNotWantedIsWaitedFor) {
  Slow slow;
  slow.broken = 3 * kBlock;  // nobody comes there
  {
    ReadAhead file(8 * kBlock, slow.fetcher());
    for (std::uint64_t i = 0; i < 2; ++i) expect_bytes(file, i * kBlock, kBlock);
  }
  EXPECT_EQ(slow.now, 0);
}

}  // namespace
}  // namespace intarsia::checkpoint
