#include "checkpoint/transfer/read_parts.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::load_difference;
using intarsia::testing::MemoryFiles;
using intarsia::testing::saved;

const std::string kFolder = "/root/step-00000000";

std::vector<SavedTensor> state() {
  return {saved("w", "f32[70@a, 60]", "[a=2]"), saved("big", "c128[560000]", "[a=2]"),
          saved("b", "f64[33@a]", "[a=2]")};
}

void save_state(MemoryFiles& files) {
  const auto tensors = state();
  run_ranks(2, [&](Ranks& ranks) { intarsia::testing::save(files, ranks, tensors, 0, 1); });
}

std::string error_of_load(MemoryFiles& files) {
  try {
    return load_difference(files, kFolder, state(), 2, 1) + " loaded";
  } catch (const FileError& error) {
    return error.what();
  }
}

TEST(ReadParts, DamageIsNamedByFileTensorAndBytes) {
  MemoryFiles files;
  save_state(files);
  auto& bytes = files.bytes_of(kFolder + "/00001-of-00002.safetensors");
  bytes[bytes.size() - 10] ^= std::byte{4};
  EXPECT_EQ(
      error_of_load(files),
      "[checkpoint] /root/step-00000000/00001-of-00002.safetensors: damaged between the bytes "
      "4194304 and 4492624, where 'big [280000,560000)', 'b [17,33)', 'w [35,70)x[0,60)' are");
}

/// A bit is flipped or a block zeroed anywhere, files end early or have changed places.
TEST(ReadParts, NoDamageIsLoaded) {
  MemoryFiles files;
  save_state(files);
  std::mt19937_64 random(4);
  int count = 0;
  for (const std::string& name : files.list(kFolder)) {
    auto& bytes = files.bytes_of(join_path(kFolder, name));
    const auto whole = bytes;
    const auto expect_refused = [&](const std::string& what) {
      const std::string error = error_of_load(files);
      EXPECT_NE(error.find(kFolder + '/'), std::string::npos)
          << name << ", " << what << ": " << error;
      bytes = whole;
      ++count;
    };
    for (int i = 0; i < 50; ++i) {
      const std::size_t bit = random() % (whole.size() * 8);
      bytes[bit / 8] ^= std::byte(1U << (bit % 8));
      expect_refused(concat("bit ", bit));
    }
    for (int i = 0; i < 10; ++i) {
      const std::size_t begin = random() % whole.size();
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.end(), std::byte{0xff});
      expect_refused(concat("filled from ", begin));
      bytes.resize(random() % whole.size());
      expect_refused(concat("of ", bytes.size(), " bytes"));
    }
    bytes.push_back(std::byte{0});
    expect_refused("a byte more");
  }
  files.swap_contents(kFolder + "/00000-of-00002.safetensors",
                      kFolder + "/00001-of-00002.safetensors");
  EXPECT_NE(error_of_load(files).find("00000-of-00002.safetensors: "), std::string::npos);
  files.swap_contents(kFolder + "/00000-of-00002.hashes", kFolder + "/00001-of-00002.hashes");
  EXPECT_NE(error_of_load(files).find("00000-of-00002"), std::string::npos);
  EXPECT_EQ(count, 5 * 71);
}

TEST(ReadParts, AFileThatIsGoneIsNamed) {
  MemoryFiles files;
  save_state(files);
  files.remove(kFolder + "/00001-of-00002.safetensors");
  EXPECT_NE(error_of_load(files).find("00001-of-00002.safetensors"), std::string::npos);
}

TEST(ReadParts, TheSameTensorMayBeReadTwice) {
  MemoryFiles files;
  save_state(files);
  const Manifest manifest = read_manifest(files, kFolder);
  const auto tensors = state();
  const Layout one = Layout::parse("[a=3] S(0)");
  std::vector<std::vector<std::byte>> memory;
  std::vector<Wanted> wanted;
  for (const std::int64_t at : {2, 0, 1, 2}) {
    const Boxes held = boxes(one, tensors[1].type.shape, {at});
    memory.emplace_back(static_cast<std::size_t>(held.numel() * 16));
    wanted.push_back({1, part_of(held), {}});
  }
  for (std::size_t i = 0; i < 4; ++i) wanted[i].into = memory[i];
  read_parts(files, kFolder, manifest, wanted);
  const SavedTensor other{"big", {DType::c128, tensors[1].type.shape, one}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(memory[i], intarsia::testing::piece_of(other, std::vector{2, 0, 1, 2}[i], 1)) << i;
  }
}

TEST(ReadParts, AManifestThatNamesNoFileIsRefused) {
  MemoryFiles files;
  save_state(files);
  Manifest manifest = read_manifest(files, kFolder);
  manifest.files.pop_back();
  std::vector<std::byte> memory(33 * 8);
  const std::vector<Wanted> wanted{
      {2, part_of(boxes(Layout::parse("[a=1] R"), Shape{33}, {0})), memory}};
  expect_error<FileError>([&] { read_parts(files, kFolder, manifest, wanted); },
                          {"the manifest names no file of rank 1, which was to write 'b'"});
}

}  // namespace
}  // namespace intarsia::checkpoint
