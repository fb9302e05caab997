#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "checkpoint/files/files.h"
#include "checkpoint/test_state.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::saved;

class LocalFilesTest : public ::testing::Test {
 protected:
  LocalFilesTest() {
    std::string form = ::testing::TempDir() + "local_filesXXXXXX";
    folder_ = mkdtemp(form.data());
  }
  ~LocalFilesTest() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name) const { return join_path(folder_, name); }

  std::string folder_;
  Files& files_ = local_files();
};

TEST_F(LocalFilesTest, WritesReadsRenamesAndRemoves) {
  write_text(files_, path("a"), "one");
  write_text(files_, path("b"), "two");
  EXPECT_EQ(files_.list(folder_), (std::vector<std::string>{"a", "b"}));
  files_.exchange(path("a"), path("b"));
  EXPECT_EQ(read_text(files_, path("a"), 9), "two");
  files_.make_folder(path("f"));
  files_.rename(path("a"), path("f/a"));
  files_.sync_folder(path("f"));
  EXPECT_TRUE(files_.exists(path("f/a")));
  EXPECT_FALSE(files_.exists(path("a")));
  files_.remove(path("f"));
  EXPECT_FALSE(files_.exists(path("f")));
  EXPECT_GT(files_.free_bytes(folder_), 0U);
}

TEST_F(LocalFilesTest, RunsAreWrittenWhereTheyBelong) {
  // Short ones through mapped pages, long ones by calls; beyond the end too, and from two writers.
  for (const std::size_t length : {std::size_t{3}, std::size_t{5000}, std::size_t{100000}}) {
    const std::string file = path(concat("runs-", length).c_str());
    write_text(files_, file, "head");
    const std::vector<std::byte> ones(length, std::byte{1});
    const std::vector<std::byte> twos(length, std::byte{2});
    const auto offset = [&](std::size_t run) { return 4 + run * length; };
    for (const auto& [bytes, first] : {std::pair(&ones, 0U), std::pair(&twos, 1U)}) {
      std::vector<FileRun> runs;
      for (std::size_t run = first; run < 20; run += 2) runs.push_back({offset(run), *bytes});
      const auto opened = files_.open_to_write(file);
      opened->write_runs(runs);
      opened->write_runs({});
      opened->sync();
    }
    const std::string found = read_text(files_, file, 1U << 22);
    ASSERT_EQ(found.size(), offset(20));
    EXPECT_EQ(found.substr(0, 4), "head");
    for (std::size_t run = 0; run < 20; ++run) {
      EXPECT_EQ(found.substr(offset(run), length), std::string(length, run % 2 == 0 ? 1 : 2));
    }
  }
  expect_error<FileError>([&] { files_.open_to_write(path("none")); }, {"none: cannot be opened"});
}

TEST_F(LocalFilesTest, NothingIsOverwritten) {
  write_text(files_, path("a"), "one");
  write_text(files_, path("b"), "two");
  expect_error<FileError>([&] { files_.create(path("a")); },
                          {path("a"), "cannot be opened: File exists"});
  expect_error<FileError>([&] { files_.rename(path("a"), path("b")); },
                          {"cannot be renamed to " + path("b"), "File exists"});
  files_.make_folder(path("f"));
  expect_error<FileError>([&] { files_.make_folder(path("f")); }, {"cannot be made: File exists"});
}

TEST_F(LocalFilesTest, WhatIsMissingIsNamed) {
  expect_error<FileError>([&] { files_.open(path("x")); },
                          {path("x"), "cannot be opened: No such file or directory"});
  expect_error<FileError>([&] { files_.list(path("x")); }, {"cannot be listed"});
  expect_error<FileError>([&] { files_.sync_folder(path("x")); }, {"cannot be opened"});
  expect_error<FileError>([&] { files_.free_bytes(path("x")); }, {"cannot be looked at"});
  expect_error<FileError>([&] { files_.open(folder_); }, {"not a file"});
  write_text(files_, path("a"), "one");
  std::array<std::byte, 4> more{};
  expect_error<FileError>([&] { files_.open(path("a"))->read(0, more); }, {"ends at byte 3"});
}

/// A limit of the system stands for a full disk: part of the bytes are written, then none.
TEST_F(LocalFilesTest, AWriteThatStopsHalfWayIsAnError) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const auto file = files_.create(path("a"));
  const std::vector<std::byte> bytes(1500);
  expect_error<FileError>([&] { file->append(bytes); },
                          {path("a"), "cannot be written at byte 1000: File too large"});
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

TEST_F(LocalFilesTest, HoldsCheckpoints) {
  OneRank ranks;
  const std::vector<SavedTensor> tensors{saved("w", "f32[1000, 1500]", "[a=1]"),
                                         saved("b", "i8[3]", "[a=1]")};
  const intarsia::testing::HeldState held(tensors, 0, 1);
  for (const bool replace : {false, true}) {
    const StepState state{.tensors = tensors, .pieces = held.pieces, .values = {{"version", 1}}};
    save_step(files_, ranks, folder_, 1, [&] { return state; }, {.replace = replace});
  }
  EXPECT_EQ(files_.list(folder_), std::vector<std::string>{"step-00000001"});
  EXPECT_EQ(intarsia::testing::load_difference(files_, path("step-00000001"), tensors, 1, 1), "");
}

}  // namespace
}  // namespace intarsia::checkpoint
