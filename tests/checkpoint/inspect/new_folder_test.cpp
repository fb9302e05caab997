#include "checkpoint/inspect/new_folder.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::Crash;
using intarsia::testing::expect_error;
using intarsia::testing::MemoryFiles;
using Names = std::vector<std::string>;

void write(MemoryFiles& files, const std::string& target) {
  NewFolder folder(files, target);
  write_text(files, join_path(folder.path(), "a"), "1");
  folder.commit();
}

TEST(NewFolder, IsThereWhenItIsComplete) {
  MemoryFiles files;
  {
    NewFolder folder(files, "/root/out/");
    EXPECT_EQ(files.list("/root"), Names{".out.unfinished"});
    write_text(files, join_path(folder.path(), "a"), "1");
    folder.commit();
  }
  EXPECT_EQ(files.list("/root"), Names{"out"});
  files.restart(/*forgets=*/true);
  EXPECT_EQ(read_text(files, "/root/out/a", 10), "1");
  expect_error<FileError>([&] { NewFolder(files, "/root/out"); }, {"/root/out: is there already"});
}

TEST(NewFolder, NothingIsLeftWithoutACommit) {
  MemoryFiles files;
  { NewFolder folder(files, "/root/out"); }
  EXPECT_TRUE(files.list("/root").empty());
}

TEST(NewFolder, ACrashAnywhereLeavesAllOrNothing) {
  for (std::size_t at = 0;; ++at) {
    MemoryFiles files;
    bool crashed = false;
    files.before = [&](std::size_t number, const auto&) {
      if (number == at) throw Crash{};
    };
    try {
      write(files, "/root/out");
    } catch (const Crash&) {
      crashed = true;
    }
    files.restart(/*forgets=*/true);
    if (files.exists("/root/out")) {
      ASSERT_EQ(read_text(files, "/root/out/a", 10), "1");
    } else {
      write(files, "/root/out");
    }
    ASSERT_EQ(files.list("/root"), Names{"out"});
    if (!crashed) break;
  }
}

}  // namespace
}  // namespace intarsia::checkpoint
