#include "checkpoint/format/hugging_face.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;

TEST(HuggingFace, AnIndexIsReadBack) {
  const std::map<std::string, std::string> index{{"a", "model-00001-of-00002.safetensors"},
                                                 {"b\"", "model-00002-of-00002.safetensors"}};
  EXPECT_EQ(parse_hf_index("i", hf_index_text(index, 12)), index);
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
