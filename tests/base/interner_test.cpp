#include "base/interner.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace intarsia {
namespace {

TEST(Interner, EqualValuesAreOneNode) {
  Interner<std::string> names;
  const auto* a = names.acquire("x", 7);
  const auto* b = names.acquire("x", 7);
  const auto* c = names.acquire("y", 7);  // the same hash does not make them equal
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_EQ(names.size(), 2U);
  names.release(a);
  EXPECT_EQ(names.size(), 2U);
  names.release(b);
  names.release(c);
  EXPECT_EQ(names.size(), 0U);
}

TEST(Interner, ThreadsMakeAndDropTheSameValues) {
  Interner<int> numbers;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&numbers] {
      for (int i = 0; i < 20000; ++i) {
        const int value = i % 5;
        const auto* a = numbers.acquire(value, static_cast<std::size_t>(value) << 57);
        const auto* b = numbers.acquire(value, static_cast<std::size_t>(value) << 57);
        ASSERT_EQ(a, b);
        ASSERT_EQ(a->value, value);
        numbers.release(a);
        numbers.release(b);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(numbers.size(), 0U);
}

}  // namespace
}  // namespace intarsia
