#include "checkpoint/format/hugging_face.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;

TEST(HuggingFace, AnIndexIsReadBack) {
  const std::map<std::string, std::string> index{{"a", "model-00001-of-00002.safetensors"},
                                                 {"b\"", "model-00002-of-00002.safetensors"},
                                                 {"c", "model-00002-of-00002.safetensors"}};
  const auto files =
      hf_files({file_tensor("a", DType::f32, {20}), file_tensor("b\"", DType::c128, {2}),
                file_tensor("c", DType::f32, {0})},
               64);
  const std::string text = hf_index_text(files);
  EXPECT_EQ(parse_hf_index("i", text), index);
  EXPECT_NE(text.find("\"total_size\": 112"), text.npos) << text;
}

TEST(HuggingFace, FilesAreFilledInOrder) {
  const auto in_files = [](std::uint64_t file_bytes) {
    std::vector<std::size_t> out;
    for (const FileHeader& each :
         hf_files({file_tensor("a", DType::u8, {3}), file_tensor("b", DType::u8, {9}),
                   file_tensor("c", DType::u8, {1}), file_tensor("d", DType::u8, {2})},
                  file_bytes)) {
      out.push_back(each.tensors.size());
    }
    return out;
  };
  EXPECT_EQ(in_files(4), (std::vector<std::size_t>{1, 1, 2}));
  EXPECT_EQ(in_files(12), (std::vector<std::size_t>{2, 2}));
  EXPECT_EQ(in_files(15), (std::vector<std::size_t>{4}));
  EXPECT_EQ(hf_files({}, 1).size(), 1U);
}

TEST(HuggingFace, FilesAreNumberedFromOne) {
  EXPECT_EQ(hf_file_name(0, 1), "model.safetensors");
  EXPECT_EQ(hf_file_name(1, 3), "model-00002-of-00003.safetensors");
}

TEST(HuggingFace, WhatIsNoIndexIsRefused) {
  const auto refused = [](const char* text, const char* reason) {
    expect_error<FileError>([&] { parse_hf_index("i.json", text); }, {"i.json", reason});
  };
  refused("{}", "weight_map");
  refused("[]", "");
  refused(R"({"weight_map":{"a":1}})", "is not a text");
  refused(R"({"weight_map":{"a":"../model.safetensors"}})", "no name of a safetensors file");
  refused(R"({"weight_map":{"a":"/etc/passwd"}})", "no name of a safetensors file");
  refused(R"({"weight_map":{"a":".safetensors"}})", "no name of a safetensors file");
  refused(R"({"weight_map":{"a":"m.safetensors","a":"m.safetensors"}})", "comes twice");
}

}  // namespace
}  // namespace intarsia::checkpoint
