#include "intarsia/sequence_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "context/mask/masks.h"
#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::below;
using testing::expect_error;
using testing::random_documents;

double imbalance(const AttentionMask& mask, const SequenceOrder& order,
                 const std::vector<std::int64_t>& lengths) {
  const auto work = attention_work(mask, order, lengths);
  const double mean =
      static_cast<double>(std::accumulate(work.begin(), work.end(), std::int64_t{0})) /
      static_cast<double>(work.size());
  return static_cast<double>(*std::max_element(work.begin(), work.end())) / mean;
}

TEST(SequenceOrder, HeadTailGivesEachRankAnEarlyAndALateRun) {
  const auto lengths = shard_lengths(16, 4);
  EXPECT_EQ(SequenceOrder::head_tail(lengths).to_string(), "0:2,14:16,2:4,12:14,4:6,10:12,6:10");
  EXPECT_EQ(SequenceOrder::head_tail(lengths).runs({0, 4}), (std::vector<Range>{{0, 2}, {14, 16}}));
  EXPECT_TRUE(SequenceOrder::head_tail(shard_lengths(16, 1)).is_contiguous());
}

TEST(SequenceOrder, ShardsAreThoseOfTorchChunk) {
  EXPECT_EQ(shard_lengths(10, 4), (std::vector<std::int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(shard_lengths(5, 4), (std::vector<std::int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(shard_lengths(0, 2), (std::vector<std::int64_t>{0, 0}));
}

TEST(SequenceOrder, EveryOrderHoldsEachPositionOnce) {
  testing::Random random(3);
  for (int i = 0; i < 200; ++i) {
    const std::int64_t size = 1 + below(random, 200);
    const auto lengths = shard_lengths(size, 1 + below(random, 8));
    const auto documents = random_documents(random, size);
    for (const SequenceOrder& order :
         {SequenceOrder(), SequenceOrder::head_tail(lengths),
          SequenceOrder::head_tail(lengths, documents),
          SequenceOrder::balanced(lengths, AttentionMask::causal().documents(documents))}) {
      auto positions = order.positions(size);
      const auto places = order.places(size);
      for (std::size_t p = 0; p < positions.size(); ++p) {
        ASSERT_EQ(places[static_cast<std::size_t>(positions[p])], static_cast<std::int64_t>(p));
      }
      std::sort(positions.begin(), positions.end());
      for (std::int64_t p = 0; p < size; ++p) ASSERT_EQ(positions[static_cast<std::size_t>(p)], p);
      ASSERT_EQ(SequenceOrder::parse(order.to_string()), order);
    }
  }
}

TEST(SequenceOrder, EvensOutTheWork) {
  const auto lengths = shard_lengths(4096, 8);
  const auto causal = AttentionMask::causal();
  EXPECT_GT(imbalance(causal, {}, lengths), 1.8);
  EXPECT_LT(imbalance(causal, SequenceOrder::head_tail(lengths), lengths), 1.001);
  EXPECT_LT(imbalance(causal, SequenceOrder::balanced(lengths, causal), lengths), 1.05);
  testing::Random random(5);
  const auto documents = random_documents(random, 4096);
  const auto packed = causal.documents(documents);
  EXPECT_LT(imbalance(packed, SequenceOrder::head_tail(lengths, documents), lengths), 1.15);
  EXPECT_LT(imbalance(packed, SequenceOrder::balanced(lengths, packed), lengths), 1.15);
}

TEST(SequenceOrder, RefusesWhatIsNoOrder) {
  expect_error<ValueError>([] { SequenceOrder::of({{0, 2}, {1, 3}}); }, {"[1,3)", "once"});
  expect_error<ValueError>([] { SequenceOrder::of({{1, 2}}); }, {"go on from 0"});
  expect_error<ValueError>([] { SequenceOrder::parse("0:2;2:3"); }, {"0:2;2:3"});
  const auto order = SequenceOrder::head_tail(shard_lengths(8, 2));
  expect_error<ValueError>([&] { order.check("f", 9); }, {"[f]", "8 positions", "has 9"});
  const auto lengths = shard_lengths(8, 2);
  expect_error<ValueError>(
      [&] {
        SequenceOrder::head_tail(lengths, std::vector<std::int64_t>{0, 9});
      },
      {"below 8"});
}

}  // namespace
}  // namespace intarsia
