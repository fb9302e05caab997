#include "checkpoint/inspect/import_dcp.h"

#include <gtest/gtest.h>

#include "checkpoint/dcp_files.h"
#include "checkpoint/inspect/blocks.h"
#include "checkpoint/inspect/verify.h"
#include "checkpoint/session/load_step.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::DcpFiles;
using intarsia::testing::expect_error;

TEST(ImportDcp, IsACheckpointLikeAnyOther) {
  DcpFiles folder;
  folder.write();
  folder.files.make_folder("/root/out");
  std::uint64_t last = 0;
  import_dcp(folder.files, "/root", "/root/out", 5, true,
             [&](std::uint64_t done, std::uint64_t) { last = done; });
  EXPECT_EQ(last, 6U);
  const std::string step = "/root/out/step-00000005";
  EXPECT_TRUE(verify_step(folder.files, step).empty());
  const Manifest manifest = read_manifest(folder.files, step);
  EXPECT_EQ(manifest.values, (Json{{"n", {{"k", 7}}}}));
  std::string values;
  const std::size_t first = 0;
  for_each_block(folder.files, step, manifest, std::span(&first, 1), true,
                 [&](std::size_t, std::span<const std::byte> bytes) {
                   for (const std::byte b : bytes) values += static_cast<char>(b);
                 });
  EXPECT_EQ(values, "abcdef");
  EXPECT_EQ(manifest.step, 5);
}

TEST(ImportDcp, ValuesMayBeLeftOutAndNothingIsLeftOfWhatFailed) {
  DcpFiles folder;
  folder.value = "no archive at all";
  folder.write();
  folder.files.make_folder("/root/out");
  const auto run = [&](std::int64_t step, bool with_values) {
    import_dcp(folder.files, "/root", "/root/out", step, with_values, {});
  };
  expect_error<FileError>([&] { run(1, true); }, {"/root/__0_0.distcp: the archive"});
  EXPECT_TRUE(folder.files.list("/root/out").empty());
  run(1, false);
  expect_error<FileError>([&] { run(1, false); }, {"is there already"});
  folder.files.remove("/root/__0_0.distcp");
  EXPECT_THROW(run(2, false), FileError);
  EXPECT_EQ(folder.files.list("/root/out"), std::vector<std::string>{"step-00000001"});
}

}  // namespace
}  // namespace intarsia::checkpoint
