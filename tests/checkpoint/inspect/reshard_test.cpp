#include "checkpoint/inspect/reshard.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/inspect/verify.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::load_difference;
using intarsia::testing::MemoryFiles;
using intarsia::testing::RandomStates;
using intarsia::testing::save;
using intarsia::testing::saved;

TEST(Reshard, TheSameValuesInAnotherNumberOfFiles) {
  RandomStates random(11);
  for (int i = 0; i < 40; ++i) {
    MemoryFiles files;
    files.make_folder("/root/out");
    const std::int64_t world = random.pick(1, 5);
    const std::int64_t count = random.pick(1, 5);
    std::vector<SavedTensor> tensors{saved("big", "c128[3, 90000]", "[]")};
    for (int t = 0; t < 5; ++t) tensors.push_back(random.tensor("t" + std::to_string(t), world));
    tensors[0] = random.elsewhere(tensors[0], world);
    std::optional<std::uint64_t> hf_file_bytes;
    if (random.pick(0, 1) == 0) hf_file_bytes = 1000;
    run_ranks(world, [&](Ranks& ranks) { save(files, ranks, tensors, 2, 1, {}, hf_file_bytes); });
    const std::string from = "/root/step-00000002";
    const Manifest manifest = read_manifest(files, from);
    reshard(files, from, manifest, "/root/out", count, {});
    const std::string folder = "/root/out/step-00000002";
    ASSERT_TRUE(verify_step(files, folder, {}).empty());
    ASSERT_EQ(load_difference(files, folder, tensors, world, 1), "") << "case " << i;
    const Manifest made = read_manifest(files, folder);
    EXPECT_EQ(made.world, count);
    EXPECT_EQ(made.values, manifest.values);
    expect_error<FileError>([&] { reshard(files, from, manifest, "/root/out", count, {}); },
                            {folder, "is there already"});
  }
}

TEST(Reshard, FilesShareTheBytes) {
  MemoryFiles files;
  files.make_folder("/root/out");
  const std::vector<SavedTensor> tensors{saved("w", "f64[400000, 2]", "[]")};
  run_ranks(1, [&](Ranks& ranks) { save(files, ranks, tensors, 2, 1); });
  const std::string from = "/root/step-00000002";
  reshard(files, from, read_manifest(files, from), "/root/out", 4, {});
  for (const SavedFile& file : read_manifest(files, "/root/out/step-00000002").files) {
    EXPECT_NEAR(static_cast<double>(file.bytes), 1600000, 8192);
  }
  expect_error<ValueError>(
      [&] { reshard(files, from, read_manifest(files, from), "/root/out", 0, {}); },
      {"0 files hold nothing"});
}

}  // namespace
}  // namespace intarsia::checkpoint
