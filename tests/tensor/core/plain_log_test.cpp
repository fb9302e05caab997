#include "tensor/core/plain_log.h"

#include <gtest/gtest.h>

#include <string>

namespace intarsia {
namespace {

constexpr std::uint64_t kEntries = PlainLog::kEntries;

void add(PlainLog& log, std::uint64_t hash, const std::string& tensor = "f32[2] plain") {
  log.add({"aten::add.Tensor", tensor, hash});
}

TEST(PlainLog, IsEmptyAtFirst) {
  const PlainLog log;
  EXPECT_EQ(log.count(), 0U);
  EXPECT_EQ(log.hash(), 0U);
  EXPECT_EQ(log.hashes(), std::vector<std::int64_t>(kEntries, 0));
  EXPECT_EQ(log.entry(0).op, "");
}

TEST(PlainLog, KeepsEntriesByTheirNumber) {
  PlainLog log;
  add(log, 11, "f32[2] plain");
  add(log, 12, "f64[3] plain");
  EXPECT_EQ(log.count(), 2U);
  EXPECT_EQ(log.entry(0).tensor, "f32[2] plain");
  EXPECT_EQ(log.entry(1).tensor, "f64[3] plain");
  EXPECT_EQ(log.entry(1).op, "aten::add.Tensor");
  EXPECT_EQ(log.entry(1).hash, 12U);
  EXPECT_EQ(log.hashes()[0], 11);
  EXPECT_EQ(log.hashes()[1], 12);
  EXPECT_EQ(log.hashes()[2], 0);
}

TEST(PlainLog, TheHashOfAllDependsOnTheirOrder) {
  PlainLog log, same, turned;
  for (const std::uint64_t h : {1, 2}) add(log, h);
  for (const std::uint64_t h : {1, 2}) add(same, h, "names do not count");
  for (const std::uint64_t h : {2, 1}) add(turned, h);
  EXPECT_EQ(log.hash(), same.hash());
  EXPECT_NE(log.hash(), turned.hash());
  EXPECT_NE(log.hash(), 0U);
}

TEST(PlainLog, TheOldestIsOverwrittenAndStaysInTheHash) {
  PlainLog log, other;
  add(log, 1000);
  add(other, 2000);
  for (std::uint64_t i = 1; i <= kEntries; ++i) {
    add(log, i);
    add(other, i);
  }
  EXPECT_EQ(log.count(), kEntries + 1);
  EXPECT_EQ(log.hashes()[0], 256) << "the last, in the place of the first";
  EXPECT_EQ(log.hashes()[1], 1);
  EXPECT_EQ(log.hashes()[255], 255);
  EXPECT_EQ(log.entry(kEntries).hash, 256U);
  EXPECT_EQ(log.hashes(), other.hashes());
  EXPECT_NE(log.hash(), other.hash());
}

TEST(PlainLog, HandsEverythingOverAndBeginsAnew) {
  PlainLog log, other;
  add(log, 11);
  add(log, 12);
  const std::uint64_t hash = log.hash();
  add(other, 99);
  log.move_to(other);
  EXPECT_EQ(other.count(), 2U);
  EXPECT_EQ(other.hash(), hash);
  EXPECT_EQ(other.entry(0).hash, 11U);
  EXPECT_EQ(log.count(), 0U);
  EXPECT_EQ(log.hash(), 0U);
  EXPECT_EQ(log.hashes(), std::vector<std::int64_t>(kEntries, 0));
  add(log, 11);
  add(log, 12);
  EXPECT_EQ(log.hash(), hash);
}

}  // namespace
}  // namespace intarsia
