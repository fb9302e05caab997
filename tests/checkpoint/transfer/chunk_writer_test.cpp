#include "checkpoint/transfer/chunk_writer.h"

#include <gtest/gtest.h>

#include <random>

#include "checkpoint/files/memory_files.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::MemoryFiles;

TEST(ChunkWriter, ChunksDoNotDependOnHowBytesCome) {
  std::vector<std::byte> all(kChunkBytes * 3 + 17);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::byte(i * 31 / 7);
  const std::span<const std::byte> span(all);
  FileHashes expected{all.size(), {}};
  for (std::size_t at = 0; at < all.size(); at += kChunkBytes) {
    expected.chunks.push_back(hash_of(span.subspan(at, std::min(kChunkBytes, all.size() - at))));
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 8; ++i) {
    MemoryFiles files;
    const auto file = files.create("/root/f");
    ChunkWriter writer(*file);
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t bytes = std::min(random() % (kChunkBytes * (i % 3 + 1)), all.size() - at);
      writer.add(span.subspan(at, bytes));
      at += bytes;
    }
    EXPECT_EQ(writer.finish(), expected);
    EXPECT_EQ(files.bytes_of("/root/f"), all);
  }
}

TEST(ChunkWriter, WhatIsSettledMayChange) {
  MemoryFiles files;
  const auto file = files.create("/root/f");
  ChunkWriter writer(*file);
  std::vector<std::byte> expected;
  std::vector<std::byte> memory;
  for (std::size_t i = 0; i < 9; ++i) {
    memory.assign(i * kChunkBytes / 5, std::byte(i));
    expected.insert(expected.end(), memory.begin(), memory.end());
    writer.add(memory);
    writer.settle();
  }
  memory.assign(memory.size(), std::byte{0xff});
  EXPECT_EQ(writer.finish().file_bytes, expected.size());
  EXPECT_EQ(files.bytes_of("/root/f"), expected);
}

TEST(ChunkWriter, NothingIsNoChunk) {
  MemoryFiles files;
  const auto file = files.create("/root/f");
  EXPECT_EQ(ChunkWriter(*file).finish(), FileHashes{});
}

}  // namespace
}  // namespace intarsia::checkpoint
