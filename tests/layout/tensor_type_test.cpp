#include "intarsia/tensor_type.h"

#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;

const Mesh kMesh = Mesh::parse("[dp=2,tp=4]");

TEST(TensorType, TextParsesBack) {
  for (const char* text :
       {"f32[1024@dp, 4096@tp]", "bf16[]", "i64[8@dp@tp]", "i64[8@tp@dp, 3]", "c64[12@dp:4, 2]",
        "f32[8, 4@dp] P(sum)@tp", "bool[3] P(or)@dp P(or)@tp", "f8e4m3[0@tp]"}) {
    const TensorType type = TensorType::parse(text, kMesh);
    EXPECT_EQ(type.to_string(), text);
    EXPECT_EQ(TensorType::parse(type.to_string(), kMesh), type);
  }
}

TEST(TensorType, SaysTheLayout) {
  const TensorType type = TensorType::parse("f32[8@tp@dp, 3]", kMesh);
  EXPECT_EQ(type.layout.to_string(), "[dp=2,tp=4] S(0),S(0) | 0:tp>dp");
  EXPECT_EQ(type.shape, (Shape{8, 3}));
}

TEST(TensorType, RefusesReductionsThatAreNotExact) {
  const auto refuse = [](const char* text, std::initializer_list<std::string> parts) {
    expect_error<ValueError>([text] { (void)TensorType::parse(text, kMesh); }, parts);
  };
  refuse("i64[4] P(avg)@dp", {"P(avg)", "i64", "P(sum) and divide"});
  refuse("f32[4] P(xor)@dp", {"P(xor)", "f32"});
  refuse("c64[4] P(max)@dp", {"P(max)", "c64"});
  refuse("i32[4] P(norm:2)@dp", {"P(norm:2)", "i32"});
}

TEST(TensorType, RefusalsNameTheValues) {
  const auto refuse = [](const char* text, std::initializer_list<std::string> parts) {
    expect_error<ValueError>([text] { (void)TensorType::parse(text, kMesh); }, parts);
  };
  refuse("f32[8@dp, 4@dp]", {"'dp'", "twice"});
  refuse("f32[8@dp] P(sum)@dp", {"'dp'", "twice"});
  refuse("f32[8@pp]", {"'pp'", "dp, tp"});
  refuse("float[8]", {"'float'", "f32"});
  refuse("f32[-1]", {"negative"});
  expect_error<ValueError>(
      [] {
        check({DType::f32, {8}, Layout(kMesh, {Placement::shard(1), Placement()})});
      },
      {"dimension 1", "only 1 dimension"});
}

}  // namespace
}  // namespace intarsia
