#include "checkpoint/format/manifest.h"

#include <gtest/gtest.h>

#include "checkpoint/format/hashes.h"
#include "checkpoint/test_state.h"
#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::saved;

Manifest example() {
  Manifest out;
  out.step = 7;
  out.world = 4;
  out.tensors = {saved("w", "f32[8@dp, 4@tp]", "[dp=2,tp=2]"), saved("s", "i64[]", "[dp=2,tp=2]"),
                 saved("o", "bf16[4@tp@dp]", "[dp=2,tp=2]")};
  out.files = {{0, 5000, 17}, {3, 4100, 18}};
  out.values = {{"lr", 0.1}, {"data", {{"sample", 1000}}}};
  return out;
}

/// The text with something replaced, and the hash made right again.
std::string changed(std::string_view what, std::string_view by) {
  std::string text = example().to_text();
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  text.replace(at, what.size(), by);
  const std::string body = text.substr(0, text.rfind("\"hash\""));
  return body + "\"hash\":\"" + hash_to_text(hash_of(body)) + "\"}\n";
}

TEST(Manifest, TextIsReadBack) {
  const Manifest manifest = example();
  EXPECT_EQ(Manifest::parse("m", manifest.to_text()), manifest);
  EXPECT_EQ(Manifest::parse("m", Manifest{}.to_text()), Manifest{});
}

TEST(Manifest, EveryFlippedBitIsSeen) {
  const std::string text = example().to_text();
  for (std::size_t i = 0; i < text.size() * 8; ++i) {
    std::string damaged = text;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    EXPECT_THROW(Manifest::parse("m", damaged), FileError) << "bit " << i;
  }
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW(Manifest::parse("m", text.substr(0, length)), FileError) << length;
  }
}

TEST(Manifest, RefusesWhatCannotBe) {
  const auto refused = [](std::string_view what, std::string_view by, const std::string& reason) {
    expect_error<FileError>([&] { Manifest::parse("m", changed(what, by)); },
                            {"[checkpoint] m: ", reason});
  };
  refused("intarsia.native", "other", "format is 'other', not 'intarsia.native' or 'intarsia.hf'");
  refused("\"version\":1", "\"version\":2", "version is 2, and this library reads 1");
  refused("\"step\":7", "\"step\":-7", "step is -7, less than 0");
  refused("\"world\":4", "\"world\":2", "'w' is laid out over [dp=2,tp=2], and 2 ranks saved");
  refused("\"world\":4", "\"world\":4,\"more\":1", "has an unknown 'more'");
  refused("\"dtype\":\"f32\"", "\"dtype\":\"f33\"", "dtype is 'f33', which is no element type");
  refused("S(0),S(1)", "S(0),S(2)", "shards dimension 2");
  refused("S(0),S(1)", "S(0),P(sum)", "('w') is a partial value");
  refused("S(0),S(1)", "S(0),X", "('w') cannot be");
  refused("\"name\":\"s\"", "\"name\":\"w\"", "the tensor 'w' comes twice");
  refused("\"rank\":3", "\"rank\":0", "the file of rank 0 is out of order");
  refused("\"rank\":3", "\"rank\":4", "the file of rank 4 is out of order");
  refused("[8,4]", "[8,-4]", "is -4, less than 0");
}

TEST(Manifest, StepsHaveNames) {
  EXPECT_EQ(step_name(100), "step-00000100");
  EXPECT_EQ(step_name(1234567890), "step-1234567890");
}

TEST(Manifest, FilesAreNumbered) {
  EXPECT_EQ(data_file_name(3, 8), "00003-of-00008.safetensors");
  EXPECT_EQ(hash_file_name(131071, 131072), "131071-of-131072.hashes");
}

}  // namespace
}  // namespace intarsia::checkpoint
