#include "checkpoint/files/files.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::MemoryFiles;

TEST(Files, TextsAreWrittenAndRead) {
  MemoryFiles files;
  write_text(files, "/root/t", "hello");
  EXPECT_EQ(read_text(files, "/root/t", 5), "hello");
  expect_error<FileError>([&] { read_text(files, "/root/t", 4); },
                          {"[checkpoint] /root/t: 5 bytes, more than 4"});
}

TEST(Files, PathsAreJoined) {
  EXPECT_EQ(join_path("a/b", "c"), "a/b/c");
  EXPECT_EQ(join_path("/", "c"), "/c");
}

/// The tests' own file system forgets what it should.
TEST(MemoryFiles, ForgetsWhatWasNotSynced) {
  MemoryFiles files;
  write_text(files, "/root/synced", "a");
  files.sync_folder("/root");
  write_text(files, "/root/no_name", "b");
  const auto more = files.create("/root/more");
  files.sync_folder("/root");
  write_text(files, "/root/late", "c");
  more->append(std::as_bytes(std::span("x", 1)));
  files.restart(true);
  EXPECT_EQ(files.list("/root"), (std::vector<std::string>{"more", "no_name", "synced"}));
  EXPECT_EQ(read_text(files, "/root/synced", 9), "a");
  EXPECT_EQ(read_text(files, "/root/more", 9), "");
}

}  // namespace
}  // namespace intarsia::checkpoint
