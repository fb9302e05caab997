#include "checkpoint/inspect/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace intarsia::checkpoint {
namespace {

template <class To, class From>
To converted(From value, DType from, DType to) {
  const auto bytes = convert(std::as_bytes(std::span(&value, 1)), from, to);
  To out;
  EXPECT_EQ(bytes.size(), sizeof(To));
  std::memcpy(&out, bytes.data(), sizeof(To));
  return out;
}

/// Every number of a short type: its value is between its neighbours', and it comes back.
void check_all(DType type) {
  double last = -1;
  for (std::uint32_t bits = 0; bits < 0x8000; ++bits) {
    const auto number = static_cast<std::uint16_t>(bits);
    const auto value = converted<double>(number, type, DType::f64);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(converted<float>(number, type, DType::f32)));
      continue;
    }
    ASSERT_GT(value, last) << bits;
    ASSERT_EQ((converted<std::uint16_t>(value, DType::f64, type)), number);
    ASSERT_EQ((converted<std::uint16_t>(-value, DType::f64, type)), number | 0x8000);
    // Half way to the neighbour below goes to the even one, and a little more or less does not.
    if (last >= 0 && std::isfinite(value)) {
      const double middle = (last + value) / 2;
      const auto even = static_cast<std::uint16_t>(bits % 2 == 0 ? bits : bits - 1);
      ASSERT_EQ((converted<std::uint16_t>(middle, DType::f64, type)), even) << bits;
      ASSERT_EQ((converted<std::uint16_t>(std::nextafter(middle, 1e300), DType::f64, type)), bits);
      ASSERT_EQ((converted<std::uint16_t>(std::nextafter(middle, -1.), DType::f64, type)),
                bits - 1);
    }
    last = value;
  }
}

TEST(Convert, AllNumbersOfF16) { check_all(DType::f16); }
TEST(Convert, AllNumbersOfBf16) { check_all(DType::bf16); }

TEST(Convert, KnownNumbers) {
  EXPECT_EQ((converted<std::uint16_t>(1.0F, DType::f32, DType::bf16)), 0x3f80);
  EXPECT_EQ((converted<std::uint16_t>(1.0F, DType::f32, DType::f16)), 0x3c00);
  EXPECT_EQ((converted<std::uint16_t>(65504.0F, DType::f32, DType::f16)), 0x7bff);
  EXPECT_EQ((converted<std::uint16_t>(65520.0F, DType::f32, DType::f16)), 0x7c00);
  EXPECT_EQ((converted<std::uint16_t>(-1e30F, DType::f32, DType::f16)), 0xfc00);
  EXPECT_EQ((converted<std::uint16_t>(6e-8F, DType::f32, DType::f16)), 1);
  EXPECT_EQ((converted<std::uint16_t>(2e-8F, DType::f32, DType::f16)), 0);
  EXPECT_EQ((converted<std::uint16_t>(-0.0F, DType::f32, DType::f16)), 0x8000);
  EXPECT_EQ((converted<std::uint16_t>(std::nanf(""), DType::f32, DType::bf16)), 0x7fc0);
  EXPECT_EQ((converted<float>(0.1, DType::f64, DType::f32)), 0.1F);
  EXPECT_EQ((converted<double>(0.1F, DType::f32, DType::f64)), double{0.1F});
}

TEST(Convert, OnlyFloatingPoint) {
  EXPECT_TRUE(can_convert(DType::f16));
  EXPECT_FALSE(can_convert(DType::f8e4m3));
  EXPECT_FALSE(can_convert(DType::i32));
  EXPECT_FALSE(can_convert(DType::c64));
}

}  // namespace
}  // namespace intarsia::checkpoint
