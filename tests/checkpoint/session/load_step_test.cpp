#include "checkpoint/session/load_step.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::MemoryFiles;

TEST(LoadStep, StepsAreTheFoldersThatWereFinished) {
  MemoryFiles files;
  for (const char* name : {"step-00000010", "step-00000009", ".step-00000011.saving-0", "step-x",
                           "step-12", "step-00000013.old", "step-1234567890"}) {
    files.make_folder(join_path("/root", name));
  }
  EXPECT_EQ(steps_in(files, "/root"), (std::vector<std::int64_t>{9, 10, 1234567890}));
  EXPECT_EQ(folder_of_step(files, "/root", 9), "/root/step-00000009");
  expect_error<FileError>([&] { folder_of_step(files, "/root", 8); },
                          {"/root: no step 8; there are 9, 10, 1234567890"});
  files.make_folder("/empty");
  expect_error<FileError>([&] { folder_of_step(files, "/empty", 8); },
                          {"no step 8; there are none"});
}

TEST(LoadStep, AFolderWithoutAManifestIsNamed) {
  MemoryFiles files;
  expect_error<FileError>([&] { read_manifest(files, "/root"); }, {"/root/manifest.json"});
}

}  // namespace
}  // namespace intarsia::checkpoint
