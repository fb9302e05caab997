#include "world/transport/reductions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Tensors = std::vector<at::Tensor>;

Placement parse(const char* text) { return Placement::parse(text); }

at::Tensor doubles(std::vector<double> values) { return at::tensor(values, at::kDouble); }

TEST(Reductions, EachCombinesAsItsNameSays) {
  const std::vector<std::pair<const char*, std::int64_t>> rows{
      {"P(sum)", 18}, {"P(min)", 5}, {"P(max)", 7}, {"P(prod)", 210},
      {"P(and)", 4},  {"P(or)", 7},  {"P(xor)", 4}};
  for (const auto& [text, want] : rows) {  // 101, 110 and 111
    const Tensors partials{at::full({2}, 5), at::full({2}, 6), at::full({2}, 7)};
    const at::Tensor value = combine(partials, parse(text));
    EXPECT_TRUE(at::equal(value, at::full({2}, want))) << text << value;
    EXPECT_TRUE(at::equal(partials[0], at::full({2}, 5))) << text << " wrote to its input";
  }
}

TEST(Reductions, TheResultIsNoInput) {
  for (const char* text : {"P(sum)", "P(max)"}) {
    const at::Tensor one = doubles({1, 2});
    const at::Tensor alone = combine(Tensors{one}, parse(text));
    EXPECT_TRUE(at::equal(alone, one));
    alone.zero_();
    combine(Tensors{one, one}, parse(text)).zero_();
    EXPECT_TRUE(at::equal(one, doubles({1, 2}))) << text;
  }
}

TEST(Reductions, ComeInTheOrderOfRanks) {
  const auto sum = [](float a, float b, float c) {
    const Tensors partials{at::full({1}, a), at::full({1}, b), at::full({1}, c)};
    return combine(partials, parse("P(sum)")).item<float>();
  };
  EXPECT_EQ(sum(1e8F, -1e8F, 1.0F), 1.0F);
  EXPECT_EQ(sum(1e8F, 1.0F, -1e8F), 0.0F);  // 1 is lost in 100,000,000
}

TEST(Reductions, HalvesAreAddedInSinglePrecision) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    // In halves 2,048 + 1 is 2,048; in bfloat16 256 + 1 is 256.
    const double big = type == at::kHalf ? 2048 : 256;
    const at::Tensor one = at::ones({1}, type);
    const at::Tensor sum = combine(Tensors{at::full({1}, big, type), one, one}, parse("P(sum)"));
    EXPECT_EQ(sum.scalar_type(), at::kFloat);
    EXPECT_EQ(sum.item<double>(), big + 2);
    EXPECT_EQ(from_partials(sum, parse("P(sum)"), 3, type).scalar_type(), type);
  }
  EXPECT_EQ(combine(Tensors{at::ones({1}, at::kComplexHalf)}, parse("P(sum)")).scalar_type(),
            at::kComplexFloat);
}

TEST(Reductions, AveragesAreDividedOnceAtTheEnd) {
  const Placement avg = parse("P(avg)");
  const at::Tensor sum = combine(Tensors{doubles({1}), doubles({2}), doubles({6})}, avg);
  EXPECT_EQ(sum.item<double>(), 9);
  EXPECT_EQ(from_partials(sum, avg, 3, at::kDouble).item<double>(), 3);
  EXPECT_EQ(from_partials(sum, parse("P(sum)"), 3, at::kDouble).item<double>(), 9);
}

TEST(Reductions, NormsAddPowers) {
  const Placement two = parse("P(norm:2)");
  EXPECT_TRUE(at::equal(to_partial(doubles({3, -4}), two), doubles({9, 16})));
  EXPECT_TRUE(at::equal(to_partial(doubles({-2}), parse("P(norm:3)")), doubles({8})));
  EXPECT_TRUE(at::equal(to_partial(doubles({-2}), parse("P(sum)")), doubles({-2})));
  const at::Tensor sum = combine(Tensors{doubles({9}), doubles({16})}, two);
  EXPECT_EQ(from_partials(sum, two, 2, at::kDouble).item<double>(), 5);
  // 300 squared is too much for a half; the root of twice that is not.
  const at::Tensor half = at::full({1}, 300, at::kHalf);
  const Tensors powers{to_partial(half, two), to_partial(half, two)};
  const at::Tensor norm = from_partials(combine(powers, two), two, 2, at::kHalf);
  EXPECT_EQ(norm.scalar_type(), at::kHalf);
  EXPECT_NEAR(norm.item<double>(), 424.26, 0.25);
}

TEST(Reductions, KeepNans) {
  const double nan = std::nan("");
  for (const char* text : {"P(min)", "P(max)", "P(sum)"}) {
    for (const Tensors& partials :
         {Tensors{doubles({nan}), doubles({1})}, Tensors{doubles({1}), doubles({nan})}}) {
      EXPECT_TRUE(std::isnan(combine(partials, parse(text)).item<double>())) << text;
    }
  }
}

TEST(Reductions, WithoutValuesOnlySizesAreKnown) {
  const at::Tensor meta = at::empty({2, 3}, at::device(at::kMeta).dtype(at::kHalf));
  const at::Tensor value = combine(Tensors{meta, meta}, parse("P(max)"));
  EXPECT_TRUE(value.is_meta());
  EXPECT_EQ(value.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(value.scalar_type(), at::kFloat);
}

TEST(Reductions, WhatHasNoExactValueIsRefused) {
  const auto refuse = [](const char* how, at::ScalarType type, std::string text) {
    expect_error<ValueError>([&] { check_reduction("all_reduce", parse(how), type); },
                             {"[all_reduce] ", std::move(text)});
  };
  refuse("R", at::kFloat, "R is no reduction; use a partial placement such as P(sum)");
  refuse("S(1)", at::kFloat, "S(1) is no reduction");
  refuse("P(avg)", at::kLong, "P(avg) of i64 has no exact value; use P(sum) and divide");
  refuse("P(norm:2)", at::kInt, "P(norm:2) of i32 has no exact value; convert the tensor first");
  refuse("P(max)", at::kComplexFloat, "P(max) of c64 has no exact value");
  refuse("P(xor)", at::kDouble, "P(xor) of f64 has no exact value");
  expect_error<UnsupportedError>(
      [] { check_reduction("all_reduce", Placement::partial(), at::kUInt32); },
      {"ATen cannot reduce u32; convert the tensor to a signed type first"});
  for (const char* how : {"P(sum)", "P(avg)", "P(min)", "P(norm:2)"}) {
    check_reduction("all_reduce", parse(how), at::kBFloat16);
  }
  check_reduction("all_reduce", parse("P(or)"), at::kBool);
}

}  // namespace
}  // namespace intarsia
