#include "checkpoint/format/json.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;

TEST(StrictJson, RefusesWhatIsNotOneValue) {
  expect_error<FileError>([] { parse_json("m", "{} {}"); }, {"[checkpoint] m: not valid JSON"});
  expect_error<FileError>([] { parse_json("m", ""); }, {"m: not valid JSON"});
  expect_error<FileError>([] { parse_json("m", std::string(100, '[') + std::string(100, ']')); },
                          {"nested too deep"});
  expect_error<FileError>([] { parse_json("m", R"({"a":{"b":1,"b":2}})"); }, {"'b' comes twice"});
  EXPECT_NO_THROW(parse_json("m", R"({"a":{"b":1},"b":{"b":2}})"));
}

TEST(StrictJson, HashesAreSixteenDigits) {
  for (const std::uint64_t hash : {std::uint64_t{0}, std::uint64_t{0xabc}, ~std::uint64_t{0}}) {
    const Json json = hash_to_text(hash);
    EXPECT_EQ((Field{json, "m", "hash"}.hash()), hash);
  }
  for (const char* text : {"", "123", "00000000000000AB", "000000000000000g", "0x00000000000000"}) {
    const Json json = text;
    expect_error<FileError>(
        [&] {
          Field{json, "m", "hash"}.hash();
        },
        {"m: hash is not a hash of 16 digits"});
  }
}

}  // namespace
}  // namespace intarsia::checkpoint
