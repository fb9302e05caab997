#include "checkpoint/inspect/verify.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::MemoryFiles;
using intarsia::testing::save;
using intarsia::testing::saved;

const std::string kStep = "/root/step-00000000";
const std::string kData = kStep + "/00001-of-00002.safetensors";

void save_step_of_two(MemoryFiles& files) {
  const std::vector<SavedTensor> tensors{saved("w", "f64[2400000@a]", "[a=2]"),
                                         saved("v", "f32[7, 6@a]", "[a=2]")};
  run_ranks(2, [&](Ranks& ranks) { save(files, ranks, tensors, 0, 1); });
}

void expect_wrong(MemoryFiles& files, const std::vector<std::string>& parts) {
  const auto wrong = verify_step(files, kStep);
  ASSERT_EQ(wrong.size(), parts.size()) << (wrong.empty() ? "" : wrong[0]);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_NE(wrong[i].find(parts[i]), std::string::npos) << wrong[i];
  }
}

TEST(Verify, FindsNothingInWhatWasSaved) {
  MemoryFiles files;
  save_step_of_two(files);
  std::uint64_t last = 0;
  EXPECT_TRUE(verify_step(files, kStep, [&](std::uint64_t done, std::uint64_t all) {
                EXPECT_LE(done, all);
                last = done;
              }).empty());
  EXPECT_GT(last, 2400000U * 8);
}

TEST(Verify, TellsAllThatIsWrong) {
  MemoryFiles files;
  save_step_of_two(files);
  auto& bytes = files.bytes_of(kData);
  bytes[bytes.size() / 2] ^= std::byte{4};
  bytes.back() ^= std::byte{4};
  write_text(files, kStep + "/notes.txt", "x");
  expect_wrong(files, {"00001-of-00002.safetensors: damaged between the bytes 4194304 and 8388608",
                       "00001-of-00002.safetensors: damaged between the bytes 8388608 and",
                       "notes.txt: no part of it"});
}

TEST(Verify, TellsWhatIsMissing) {
  MemoryFiles files;
  save_step_of_two(files);
  files.remove(kData);
  expect_wrong(files, {"00001-of-00002.safetensors"});
  files.remove(kStep + "/manifest.json");
  expect_wrong(files, {"manifest.json"});
}

}  // namespace
}  // namespace intarsia::checkpoint
