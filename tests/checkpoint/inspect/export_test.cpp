#include "checkpoint/inspect/export.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/inspect/blocks.h"
#include "checkpoint/inspect/convert.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/test_state.h"
#include "checkpoint/transfer/hugging_face_folder.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::Bytes;
using intarsia::testing::expect_error;
using intarsia::testing::load_difference;
using intarsia::testing::MemoryFiles;
using intarsia::testing::save;
using intarsia::testing::saved;

const std::string kStep = "/root/step-00000000";

std::vector<SavedTensor> state() {
  return {saved("model.w", "f32[7@a, 6]", "[a=2]"), saved("model.b", "i64[5]", "[a=2]"),
          saved("model.z", "c128[3@a]", "[a=2]"), saved("optimizer.w", "f32[7@a, 6]", "[a=2]")};
}

Manifest saved_step(MemoryFiles& files) {
  run_ranks(2, [&](Ranks& ranks) { save(files, ranks, state(), 0, 1); });
  return read_manifest(files, kStep);
}

Bytes values_of(MemoryFiles& files, const std::string& folder, const Manifest& manifest,
                std::size_t tensor) {
  Bytes out;
  for_each_block(files, folder, manifest, std::span(&tensor, 1), true,
                 [&](std::size_t, std::span<const std::byte> values) {
                   out.insert(out.end(), values.begin(), values.end());
                 });
  return out;
}

TEST(Export, IsReadBackAsAFolderOfHuggingFace) {
  for (const std::uint64_t file_bytes : {std::uint64_t{1} << 30, std::uint64_t{200}}) {
    MemoryFiles files;
    const Manifest manifest = saved_step(files);
    std::uint64_t last = 0;
    export_hf(files, kStep, manifest, "/root/hf", {.prefix = "", .file_bytes = file_bytes},
              [&](std::uint64_t done, std::uint64_t all) {
                EXPECT_GT(done, last);
                EXPECT_LE(done, all);
                last = done;
              });
    const Manifest exported = read_hf_folder(files, "/root/hf");
    EXPECT_EQ(exported.file_names.size(), file_bytes == 200 ? 3U : 1U);
    std::vector<SavedTensor> same = state();
    same.erase(same.begin() + 2);  // complex numbers are pairs there
    EXPECT_EQ(load_difference(files, "/root/hf", exported, same, 2, 1), "");
    ASSERT_EQ(exported.tensors[2].name, "model.z");
    EXPECT_EQ(exported.tensors[2].type.shape, (Shape{3, 2}));
    EXPECT_EQ(values_of(files, "/root/hf", exported, 2), values_of(files, kStep, manifest, 2));
  }
}

TEST(Export, OnlyWhatBeginsSoAndAsTheTypeThatIsWanted) {
  MemoryFiles files;
  const Manifest manifest = saved_step(files);
  export_hf(files, kStep, manifest, "/root/hf", {.prefix = "model.", .dtype = DType::bf16}, {});
  const Manifest exported = read_hf_folder(files, "/root/hf");
  ASSERT_EQ(exported.tensors.size(), 3U);
  EXPECT_EQ(exported.tensors[0].name, "w");
  EXPECT_EQ(exported.tensors[0].type.dtype, DType::bf16);
  EXPECT_EQ(exported.tensors[1].type.dtype, DType::i64);
  EXPECT_EQ(values_of(files, "/root/hf", exported, 0),
            convert(values_of(files, kStep, manifest, 0), DType::f32, DType::bf16));
}

TEST(Export, WhatCannotBeIsRefusedAndNothingIsLeft) {
  MemoryFiles files;
  const Manifest manifest = saved_step(files);
  const auto refused = [&](const ExportOptions& options, const char* reason) {
    expect_error<ValueError>([&] { export_hf(files, kStep, manifest, "/root/hf", options, {}); },
                             {reason});
  };
  refused({.prefix = "net."}, "no tensor's name begins with 'net.'");
  refused({.dtype = DType::i8}, "cannot convert to i8");
  files.bytes_of(kStep + "/00001-of-00002.safetensors").back() ^= std::byte{1};
  EXPECT_THROW(export_hf(files, kStep, manifest, "/root/hf", {}, {}), FileError);
  EXPECT_EQ(files.list("/root"), std::vector<std::string>{"step-00000000"});
}

}  // namespace
}  // namespace intarsia::checkpoint
