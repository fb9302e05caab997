#include "tensor/move/pool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>

namespace intarsia {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::shared_ptr<BufferPool> make_pool() { return std::make_shared<BufferPool>(); }

TEST(BufferPool, LendsABufferAgainOnlyForTheSameSizeAndDtype) {
  const auto pool = make_pool();
  auto first = pool->lend(10, at::kFloat);
  EXPECT_EQ(first->sizes(), at::IntArrayRef({10}));
  EXPECT_EQ(first->scalar_type(), at::kFloat);
  const void* const memory = first->const_data_ptr();
  first.reset();
  EXPECT_EQ(pool->idle(), 40);
  const auto longer = pool->lend(11, at::kFloat);
  const auto integers = pool->lend(10, at::kInt);  // as many bytes
  EXPECT_NE(longer->const_data_ptr(), memory);
  EXPECT_NE(integers->const_data_ptr(), memory);
  EXPECT_EQ(pool->idle(), 40);
  const auto again = pool->lend(10, at::kFloat);
  EXPECT_EQ(again->const_data_ptr(), memory);
  EXPECT_EQ(pool->idle(), 0);
  EXPECT_NE(pool->lend(10, at::kFloat)->const_data_ptr(), memory) << "it is lent";
}

TEST(BufferPool, CountsWhatIsLentAndTheMostOfIt) {
  const auto pool = make_pool();
  auto a = pool->lend(4, at::kDouble);
  auto b = pool->lend(3, at::kByte);
  EXPECT_EQ(pool->live(), 35);
  b.reset();
  EXPECT_EQ(pool->live(), 32);
  EXPECT_EQ(pool->high_water(), 35);
  pool->reset_high_water();
  EXPECT_EQ(pool->high_water(), 32) << "what is lent now";
  a.reset();
  EXPECT_EQ(pool->live(), 0);
  EXPECT_EQ(pool->high_water(), 32);
  EXPECT_EQ(pool->idle(), 35);
  a = pool->lend(4, at::kDouble);
  EXPECT_EQ(pool->live(), 32) << "one that is used again counts like a new one";
}

TEST(BufferPool, ABufferComesBackWithTheLastOfItsPointers) {
  const auto pool = make_pool();
  auto lease = pool->lend(2, at::kLong);
  auto other = lease;
  lease.reset();
  EXPECT_EQ(pool->live(), 16);
  other.reset();
  EXPECT_EQ(pool->live(), 0);
}

TEST(BufferPool, HoldsCountWhereverTheyAreMoved) {
  const auto pool = make_pool();
  BufferPool::Hold outer;
  {
    BufferPool::Hold hold = pool->hold(100);
    BufferPool::Hold moved = std::move(hold);
    EXPECT_EQ(pool->live(), 100);
    outer = std::move(moved);
  }
  EXPECT_EQ(pool->live(), 100);
  {
    BufferPool::Hold next = pool->hold(7);
    outer = std::move(next);
  }
  EXPECT_EQ(pool->live(), 7) << "the first one ended";
  outer = {};
  EXPECT_EQ(pool->live(), 0);
  EXPECT_EQ(pool->high_water(), 107);
  EXPECT_EQ(pool->idle(), 0) << "there is no buffer behind a hold";
}

TEST(BufferPool, KeepsAtMost64MiBAndDropsTheOldest) {
  const auto pool = make_pool();
  auto old = pool->lend(40 * kMiB, at::kByte);
  auto small = pool->lend(20 * kMiB, at::kByte);
  auto last = pool->lend(41 * kMiB, at::kByte);
  old.reset();
  small.reset();
  EXPECT_EQ(pool->idle(), 60 * kMiB);
  last.reset();
  EXPECT_EQ(pool->idle(), 61 * kMiB) << "the one of 40 MiB is gone";
  auto exact = pool->lend(64 * kMiB, at::kByte);
  exact.reset();
  EXPECT_EQ(pool->idle(), 64 * kMiB) << "the limit itself is kept";
  auto large = pool->lend(64 * kMiB + 1, at::kByte);
  EXPECT_EQ(pool->live(), 64 * kMiB + 1);
  large.reset();
  EXPECT_EQ(pool->idle(), 64 * kMiB) << "what is larger is never kept, and drops no other";
  EXPECT_EQ(pool->live(), 0);
}

TEST(BufferPool, LivesAsLongAsWhatItLent) {
  auto pool = make_pool();
  const std::weak_ptr<BufferPool> watch = pool;
  auto lease = pool->lend(3, at::kFloat);
  BufferPool::Hold hold = pool->hold(5);
  pool.reset();
  EXPECT_FALSE(watch.expired());
  lease->fill_(1);
  lease.reset();
  EXPECT_EQ(watch.lock()->live(), 5);
  hold = {};
  EXPECT_TRUE(watch.expired());
}

TEST(BufferPool, BuffersHaveNoGradient) {
  const auto pool = make_pool();
  EXPECT_FALSE(pool->lend(3, at::TensorOptions(at::kFloat).requires_grad(true))->requires_grad());
  EXPECT_EQ(pool->lend(0, at::kFloat)->numel(), 0);
}

}  // namespace
}  // namespace intarsia
