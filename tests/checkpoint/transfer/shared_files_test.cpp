#include "checkpoint/transfer/shared_files.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/inspect/verify.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"
#include "checkpoint/transfer/hugging_face_folder.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::load_difference;
using intarsia::testing::MemoryFiles;
using intarsia::testing::save;
using intarsia::testing::saved;

constexpr std::uint64_t kFileBytes = 400;
const std::string kFolder = "/root/step-00000001";

/// By columns, by rows, in blocks, the same on all, without elements; complex.
std::vector<SavedTensor> state() {
  return {saved("columns", "f32[7, 6@a]", "[a=3]"),  saved("rows", "f64[8@a, 5]", "[a=3]"),
          saved("blocks", "i16[9@a:2, 3]", "[a=3]"), saved("same", "c128[40]", "[a=3]"),
          saved("none", "f32[0, 4]", "[a=3]"),       saved("one", "i64[]", "[a=3]")};
}

std::vector<SavedTensor> everything_on_one() {
  auto out = state();
  for (auto& tensor : out) tensor.type.layout = Layout::replicated(Mesh::parse("[one=1]"));
  return out;
}

void save_hf(MemoryFiles& files, std::uint64_t file_bytes = kFileBytes) {
  const auto tensors = state();
  for (const auto& each :
       run_ranks(3, [&](Ranks& ranks) { save(files, ranks, tensors, 1, 5, {}, file_bytes); })) {
    EXPECT_EQ(intarsia::testing::text_of(each), "");
  }
}

TEST(SharedFiles, AreAFolderOfHuggingFace) {
  for (const std::uint64_t file_bytes : {std::uint64_t{1}, kFileBytes, std::uint64_t{1} << 30}) {
    MemoryFiles files;
    save_hf(files, file_bytes);
    // Read as any folder of Hugging Face, without our manifest: each tensor is all there.
    Manifest found = read_hf_folder(files, kFolder);
    auto into = everything_on_one();
    for (auto& tensor : into) {
      if (tensor.name != "same") continue;
      // Such files know no complex numbers.
      const std::size_t place = found.places().at("same");
      EXPECT_EQ(found.tensors[place].type.shape, (Shape{40, 2}));
      found.tensors[place].type.shape = {40};
      found.tensors[place].type.dtype = DType::c128;
    }
    EXPECT_EQ(load_difference(files, kFolder, found, into, 1, 5, {.verify = false}), "");
    EXPECT_EQ(load_difference(files, kFolder, into, 1, 5), "");
    EXPECT_TRUE(verify_step(files, kFolder, {}).empty());
  }
}

TEST(SharedFiles, ADamagedByteIsNamedWhereverItIs) {
  MemoryFiles whole;
  save_hf(whole);
  std::size_t tried = 0;
  for (const std::string& name : whole.list(kFolder)) {
    const std::string path = join_path(kFolder, name);
    const std::size_t bytes = whole.bytes_of(path).size();
    for (std::size_t at = 0; at < bytes; at += name.ends_with(".safetensors") ? 61 : 7) {
      MemoryFiles files;
      save_hf(files);
      files.bytes_of(path)[at] ^= std::byte{4};
      const auto wrong = verify_step(files, kFolder, {});
      ASSERT_FALSE(wrong.empty()) << path << " at " << at;
      ++tried;
      if (name == "model.safetensors.index.json") continue;  // which a load needs not
      EXPECT_THROW(load_difference(files, kFolder, everything_on_one(), 1, 5), FileError)
          << path << " at " << at;
    }
  }
  EXPECT_GT(tried, 300U);
}

TEST(SharedFiles, ErrorsNameTheTensorAndTheFile) {
  MemoryFiles files;
  save_hf(files);
  auto& bytes = files.bytes_of(kFolder + "/model-00001-of-00004.safetensors");
  const std::size_t last = bytes.size() - 1;
  bytes[last] ^= std::byte{1};
  expect_error<FileError>([&] { load_difference(files, kFolder, everything_on_one(), 1, 5); },
                          {kFolder + "/model*.safetensors, rank ", "damaged between the bytes"});
  bytes[last] ^= std::byte{1};
  bytes.pop_back();
  expect_error<FileError>([&] { load_difference(files, kFolder, everything_on_one(), 1, 5); },
                          {"model-00001-of-00004.safetensors: ", " were written"});
}

}  // namespace
}  // namespace intarsia::checkpoint
