#include "checkpoint/format/safetensors.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;

std::string with_length(std::string_view json) {
  std::string out(kLengthBytes, '\0');
  for (std::size_t i = 0, length = json.size(); i < kLengthBytes; ++i, length >>= 8) {
    out[i] = static_cast<char>(length & 0xff);
  }
  return out.append(json);
}

FileHeader parse(std::string_view json, std::uint64_t data) {
  const std::string text = with_length(json);
  return parse_header("x.safetensors", text, text.size() + data);
}

void expect_refused(std::string_view json, std::uint64_t data, const std::string& reason) {
  expect_error<FileError>([&] { parse(json, data); }, {"[checkpoint] x.safetensors: ", reason});
}

TEST(Safetensors, WhatIsPlacedIsRead) {
  const FileHeader header = place_tensors(
      {{"w", DType::f32, {2, 3}}, {"empty", DType::i64, {0, 4}}, {"s", DType::u8, {}}},
      {{"a", "b"}});
  EXPECT_EQ(header.data_begin % kDataAlignment, 0U);
  EXPECT_EQ(header.file_bytes, header.data_begin + 25);
  const FileHeader read = parse_header("x", header_text(header), header.file_bytes);
  EXPECT_EQ(read.tensors, header.tensors);
  EXPECT_EQ(read.metadata, header.metadata);
}

TEST(Safetensors, ReadsWhatOthersWrite) {
  const FileHeader read = parse(R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
                                R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}  )",
                                8);
  ASSERT_EQ(read.tensors.size(), 2U);
  EXPECT_EQ(read.tensors[0].name, "a");
  EXPECT_EQ(read.tensors[1].begin, read.data_begin + 4);
}

TEST(Safetensors, RefusesHeadersThatCannotBe) {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return std::string(R"({"a":{"dtype":")") + std::string(dtype) + R"(","shape":)" +
           std::string(shape) + R"(,"data_offsets":)" + std::string(offsets) + "}}";
  };
  expect_refused(one("F32", "[2]", "[0,4]"), 4, "a.data_offsets have 4 bytes between them");
  expect_refused(one("F32", "[2]", "[0,8]"), 4, "of 4 bytes of data");
  expect_refused(one("F32", "[2]", "[8,0]"), 8, "are 8 and 0");
  expect_refused(one("F32", "[2]", "[0,8]"), 9, "the last 1 bytes belong to no tensor");
  expect_refused(one("F32", "[2]", "[4,12]"), 12, "belong to no tensor");
  expect_refused(one("F32", "[-2]", "[0,8]"), 8, "a.shape[0] is -2, less than 0");
  expect_refused(one("F32", "[2.0]", "[0,8]"), 8, "is not an integer");
  expect_refused(one("F32", "[4611686018427387904,16]", "[0,8]"), 8, "more than 2^56 elements");
  expect_refused(one("F32", "[18446744073709551615]", "[0,8]"), 8, "is not an integer of 64 bits");
  expect_refused(one("F3", "[2]", "[0,8]"), 8, "'F3', which this version does not read");
  expect_refused(one("F32", "[2]", "[0,8,9]"), 8, "is not a pair");
  expect_refused(one("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "has 17 sizes");
  expect_refused(R"({"a":1})", 0, "a is not an object");
  expect_refused(R"({"a":{"dtype":"F32","shape":[]}})", 4, "a has no 'data_offsets'");
  expect_refused(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":1}})", 1, "unknown 'x'");
  expect_refused(R"({"__metadata__":{"a":1}})", 0, "__metadata__.a is not a text");
  expect_refused(R"([])", 0, "the header is no object");
  expect_refused(R"({)", 0, "not valid JSON");
  expect_refused(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                 R"("b":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                 1, "belong to two tensors");
  expect_refused(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                 R"("a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                 1, "the name 'a' comes twice");
}

TEST(Safetensors, TensorsNeedNamesOfTheirOwn) {
  const auto place = [](const std::vector<std::string>& names) {
    std::vector<FileTensor> tensors;
    for (const auto& name : names) tensors.push_back({.name = name, .shape = {2}});
    return header_text(place_tensors(tensors));
  };
  expect_error<ValueError>([&] { place({"a", "b", "a"}); }, {"'a' would stand twice"});
  expect_error<ValueError>([&] { place({"__metadata__"}); }, {"give it another name"});
  expect_error<ValueError>([&] { place({"\xff"}); }, {"not valid UTF-8"});
  EXPECT_NE(place({"a\"\n"}).find(R"("a\"\n":{)"), std::string::npos);
}

TEST(Safetensors, RefusesLengthsThatCannotBe) {
  expect_error<FileError>([] { header_bytes("x", "abc", 3); }, {"x: 3 bytes are too few"});
  expect_error<FileError>([] { header_bytes("x", std::string(8, '\xff'), 1000); },
                          {"x: the header should have 18446744073709551615 bytes"});
  expect_error<FileError>([] { header_bytes("x", std::string("\x10\0\0\0\0\0\0\0", 8), 20); },
                          {"should have 16 bytes, of a file of 20"});
}

}  // namespace
}  // namespace intarsia::checkpoint
