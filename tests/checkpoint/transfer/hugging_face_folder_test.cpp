#include "checkpoint/transfer/hugging_face_folder.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/format/hugging_face.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/test_state.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::load_difference;
using intarsia::testing::MemoryFiles;
using intarsia::testing::piece_of;
using intarsia::testing::RandomStates;
using intarsia::testing::saved;

/// A file as others write it.
void write_file(MemoryFiles& files, const std::string& name,
                const std::vector<SavedTensor>& tensors) {
  std::vector<FileTensor> placed;
  for (const auto& each : tensors) {
    placed.push_back({.name = each.name, .dtype = each.type.dtype, .shape = each.type.shape});
  }
  const auto file = files.create(join_path("/root", name));
  const std::string header = header_text(place_tensors(placed));
  file->append(std::as_bytes(std::span(header)));
  for (const auto& each : tensors) file->append(piece_of(each, 0, 1));
}

/// An index that says in which file each tensor is.
std::string index_text(const std::map<std::string, std::string>& file_of_tensor) {
  return Json{{"metadata", Json::object()}, {"weight_map", file_of_tensor}}.dump();
}

const std::vector<SavedTensor> kFirst{saved("w", "bf16[7, 6]", "[]"), saved("s", "f32[]", "[]")};
const std::vector<SavedTensor> kSecond{saved("v", "f32[300, 40]", "[]")};

TEST(HuggingFaceFolder, IsReadIntoAnyLayout) {
  MemoryFiles files;
  write_file(files, "model-00001-of-00002.safetensors", kFirst);
  write_file(files, "model-00002-of-00002.safetensors", kSecond);
  write_text(files, "/root/model.safetensors.index.json",
             index_text({{"w", "model-00001-of-00002.safetensors"},
                         {"s", "model-00001-of-00002.safetensors"},
                         {"v", "model-00002-of-00002.safetensors"}}));
  const Manifest manifest = read_hf_folder(files, "/root");
  ASSERT_EQ(manifest.tensors.size(), 3U);
  RandomStates random(5);
  for (int i = 0; i < 50; ++i) {
    const std::int64_t world = random.pick(1, 5);
    std::vector<SavedTensor> into;
    for (const auto& each : {kFirst[0], kFirst[1], kSecond[0]}) {
      into.push_back(random.elsewhere(each, world));
    }
    ASSERT_EQ(load_difference(files, "/root", manifest, into, world, 1), "") << "case " << i;
  }
}

TEST(HuggingFaceFolder, OneFileNeedsNoIndex) {
  MemoryFiles files;
  write_file(files, "adapter.safetensors", kFirst);
  EXPECT_EQ(read_hf_folder(files, "/root").file_names,
            std::vector<std::string>{"adapter.safetensors"});
  write_file(files, "model.safetensors", kSecond);
  EXPECT_EQ(read_hf_folder(files, "/root").file_names,
            std::vector<std::string>{"model.safetensors"});
}

TEST(HuggingFaceFolder, WhatDoesNotFitIsNamed) {
  MemoryFiles files;
  const auto refused = [&](const char* reason) {
    expect_error<FileError>([&] { read_hf_folder(files, "/root"); }, {reason});
  };
  const auto index = [&](const std::map<std::string, std::string>& map) {
    const std::string path = "/root/model.safetensors.index.json";
    files.remove(path);
    write_text(files, path, index_text(map));
  };
  refused("/root: no model.safetensors.index.json, and no safetensors files");
  write_file(files, "a.safetensors", kFirst);
  write_file(files, "b.safetensors", kSecond);
  refused("several of a.safetensors, b.safetensors");
  index({{"w", "a.safetensors"}});
  refused("/root/a.safetensors: holds 's', which model.safetensors.index.json does not name");
  index({{"w", "a.safetensors"}, {"s", "b.safetensors"}, {"v", "b.safetensors"}});
  refused("/root/a.safetensors: holds 's', which model.safetensors.index.json names elsewhere");
  index({{"w", "a.safetensors"}, {"s", "a.safetensors"}, {"q", "a.safetensors"}});
  refused("/root/a.safetensors: has no 'q', which model.safetensors.index.json says");
  index({{"w", "c.safetensors"}});
  refused("/root/c.safetensors");
}

}  // namespace
}  // namespace intarsia::checkpoint
