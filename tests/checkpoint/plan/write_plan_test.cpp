#include "checkpoint/plan/write_plan.h"

#include <gtest/gtest.h>

#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/plan/copy_runs.h"
#include "checkpoint/test_state.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::RandomStates;
using intarsia::testing::saved;

std::uint64_t bytes_of_rank(const WritePlan& plan, std::span<const SavedTensor> tensors,
                            std::int64_t rank) {
  std::uint64_t bytes = 0;
  for (const Share& share : plan.of_rank(rank)) {
    bytes += bytes_of(tensors[share.tensor].type.dtype, share.part.shape);
  }
  return bytes;
}

TEST(WritePlan, ReplicasShareTheWriting) {
  const std::vector<SavedTensor> tensors{saved("w", "f32[4096, 1024]", "[dp=4]")};
  const WritePlan plan(tensors);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const auto shares = plan.of_rank(rank);
    ASSERT_EQ(shares.size(), 1U);
    EXPECT_EQ(shares[0].rows, (Range{1024 * rank, 1024 * rank + 1024}));
  }
}

TEST(WritePlan, ShortTensorsAreNotSplit) {
  std::vector<SavedTensor> tensors;
  for (int i = 0; i < 40; ++i) {
    tensors.push_back(
        saved("w" + std::to_string(i), i % 2 == 0 ? "f32[1000]" : "f32[3]", "[dp=4]"));
  }
  const WritePlan plan(tensors);
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(plan.of_rank(rank).size(), 10U);
    EXPECT_EQ(bytes_of_rank(plan, tensors, rank), 5 * 4012U);
  }
}

TEST(WritePlan, NamesSayWhichPartItIs) {
  const SavedTensor tensor = saved("layers.0.w", "f32[8@a, 4]", "[a=2]");
  const std::vector<SavedTensor> tensors{tensor};
  EXPECT_EQ(part_name(tensor, WritePlan(tensors).of_rank(1)[0].part), "layers.0.w [4,8)x[0,4)");
  const SavedTensor full = saved("b", "f32[8]", "[a=2]");
  EXPECT_EQ(part_name(full, part_of(boxes(full.type.layout, full.type.shape, {0}))), "b");
}

/// Every element is written by exactly one rank, and the holders of what a rank of another layout
/// wants are those who write it.
TEST(WritePlan, EveryElementIsWrittenOnce) {
  RandomStates random(2);
  for (int i = 0; i < 1500; ++i) {
    const std::int64_t world = random.pick(1, 8);
    std::vector<SavedTensor> tensors;
    for (int t = 0; t < 5; ++t) tensors.push_back(random.tensor("t" + std::to_string(t), world));
    const WritePlan plan(tensors, static_cast<std::uint64_t>(random.pick(0, 200)));
    std::vector<std::int64_t> written(tensors.size());
    std::map<std::pair<std::size_t, std::string>, std::int64_t> writers;
    for (std::int64_t rank = 0; rank < world; ++rank) {
      for (const Share& share : plan.of_rank(rank)) {
        written[share.tensor] += share.part.numel();
        const auto [at, is_new] = writers.try_emplace({share.tensor, share.part.to_string()}, rank);
        ASSERT_TRUE(is_new) << tensors[share.tensor].type.to_string() << " on " << rank;
      }
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      std::int64_t numel = 1;
      for (const std::int64_t size : tensors[t].type.shape) numel *= size;
      ASSERT_EQ(written[t], numel) << tensors[t].type.layout.to_string();
      const SavedTensor other = random.elsewhere(tensors[t], world);
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const auto at = other.type.layout.mesh().coordinate_of(rank);
        if (!at) continue;
        const Part wanted = part_of(boxes(other.type.layout, other.type.shape, *at));
        std::int64_t found = 0;
        for (const Holder& holder : plan.holders(t, wanted)) {
          const std::int64_t common = CopyRuns(holder.part, wanted, 1).numel();
          ASSERT_GT(common, 0);
          ASSERT_EQ(writers.at({t, holder.part.to_string()}), holder.rank);
          found += common;
        }
        ASSERT_EQ(found, wanted.numel());
      }
    }
  }
}

TEST(WritePlan, SharersAreThoseWithTheSamePieces) {
  const std::vector<SavedTensor> tensors{saved("w", "f32[8@tp]", "[dp=2,tp=2]"),
                                         saved("r", "f32[8]", "[dp=2,tp=2]")};
  const WritePlan plan(tensors);
  EXPECT_EQ(plan.lines(), 2U);
  EXPECT_EQ(plan.sharers(plan.line_of(0)), 2);
  EXPECT_EQ(plan.first_sharer(plan.line_of(0), 3), 1);
  EXPECT_EQ(plan.first_sharer(plan.line_of(1), 3), 0);
  EXPECT_EQ(plan.first_sharer(plan.line_of(1), 4), std::nullopt);
}

}  // namespace
}  // namespace intarsia::checkpoint
