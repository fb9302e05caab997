#include "checkpoint/format/hashes.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;

TEST(FileHashes, TextIsReadBack) {
  const FileHashes hashes{kChunkBytes + 1, {1, 0xfedcba9876543210}};
  EXPECT_EQ(FileHashes::parse("h", hashes.to_text()), hashes);
  EXPECT_EQ(FileHashes::parse("h", FileHashes{}.to_text()), FileHashes{});
}

TEST(FileHashes, AreOneForEachChunk) {
  expect_error<FileError>(
      [] {
        FileHashes::parse("h", FileHashes{kChunkBytes + 1, {1}}.to_text());
      },
      {"h: xxh3 has 1 hashes, and 4194305 bytes are 2 chunks"});
  expect_error<FileError>(
      [] { FileHashes::parse("h", R"({"file_bytes":1,"chunk_bytes":1,"xxh3":[]})"); },
      {"h: chunk_bytes is not 4194304"});
}

TEST(FileHashes, IsXXH3) {
  // As the xxhsum program prints it (-H3) for the empty input.
  EXPECT_EQ(hash_of(std::string_view()), 0x2d06800538d394c2U);
}

}  // namespace
}  // namespace intarsia::checkpoint
