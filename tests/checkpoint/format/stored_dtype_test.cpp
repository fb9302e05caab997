#include "checkpoint/format/stored_dtype.h"

#include <gtest/gtest.h>

namespace intarsia::checkpoint {
namespace {

TEST(StoredDType, EveryTypeHasAName) {
  for (int i = 0; i <= static_cast<int>(DType::c128); ++i) {
    const auto dtype = static_cast<DType>(i);
    const StoredDType stored = stored_as(dtype);
    const auto part = dtype_of_stored(stored.name);
    ASSERT_TRUE(part) << stored.name;
    if (!stored.pairs) {
      EXPECT_EQ(*part, dtype);
    }
    EXPECT_EQ(element_bytes(dtype), element_bytes(*part) * (stored.pairs ? 2 : 1));
  }
  EXPECT_FALSE(dtype_of_stored("f32"));
  EXPECT_EQ(bytes_of(DType::c64, {3, 0}), 0U);
  EXPECT_EQ(bytes_of(DType::bf16, {3, 5}), 30U);
}

}  // namespace
}  // namespace intarsia::checkpoint
