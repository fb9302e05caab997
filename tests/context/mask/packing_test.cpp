#include "intarsia/packing.h"

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
using testing::Random;

std::vector<std::int64_t> random_lengths(Random& random, std::int64_t count, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t limit = std::int64_t{1} << (1 + below(random, 12));
    out.push_back(1 + below(random, std::min(limit, most)));
  }
  return out;
}

std::vector<std::int64_t> shards(const Packing& packing, std::int64_t ranks) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), packing.size / ranks);
}

TEST(Pack, EverySampleIsInOneSequenceOnceAndRanksHoldAsManyTokens) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t ranks = 1 + below(random, 8);
    const std::int64_t tokens = 64 + below(random, 1000);
    const auto lengths = random_lengths(random, 1 + below(random, 60), ranks * tokens);
    std::vector<int> seen(lengths.size(), 0);
    for (const Packing& packing : pack(lengths, {.ranks = ranks, .tokens = tokens})) {
      std::int64_t size = 0;
      for (std::size_t i = 0; i < packing.samples.size(); ++i) {
        const auto sample = static_cast<std::size_t>(packing.samples[i]);
        ++seen[sample];
        EXPECT_EQ(packing.documents[i], size);
        size += lengths[sample];
      }
      EXPECT_EQ(size + packing.padding, packing.size);
      EXPECT_LT(packing.padding, ranks);
      EXPECT_EQ(packing.size % ranks, 0);
      EXPECT_LE(packing.size, ranks * tokens);
      if (packing.padding > 0) {
        EXPECT_EQ(packing.documents.back(), size);
      }
      packing.order.check("test", packing.size);  // each position once
    }
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST(Pack, ShortSamplesStandOnOneRankAndLongOnesAreSpread) {
  std::vector<std::int64_t> lengths(13, 83);
  lengths[0] = 1000;
  const auto packings = pack(lengths, {.ranks = 4, .tokens = 600});
  ASSERT_EQ(packings.size(), 1U);
  const Packing& packing = packings[0];
  const std::int64_t each = packing.size / 4;
  const auto ranks_of = [&](Range document) {
    std::vector<std::int64_t> out;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      for (const Range& run : packing.order.runs({rank * each, (rank + 1) * each})) {
        if (run.begin < document.end && document.begin < run.end) out.push_back(rank);
      }
    }
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  };
  EXPECT_EQ(ranks_of({0, 1000}).size(), 4U);
  std::size_t on_one = 0;
  for (std::size_t i = 1; i < lengths.size(); ++i) {
    const std::int64_t begin = packing.documents[i];
    const auto sample = static_cast<std::size_t>(packing.samples[i]);
    on_one += ranks_of({begin, begin + lengths[sample]}).size() == 1 ? 1 : 0;
  }
  EXPECT_EQ(on_one, 12U);
}

TEST(Pack, WorkIsEven) {
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    const std::int64_t ranks = 2 + below(random, 7);
    const auto lengths = random_lengths(random, 200, 4096);
    for (const Packing& packing : pack(lengths, {.ranks = ranks, .tokens = 4096})) {
      if (packing.size < ranks * 4096 / 2) continue;  // the last one, of what was left
      const auto work = attention_work(packing.mask(), packing.order, shards(packing, ranks));
      const auto all = std::accumulate(work.begin(), work.end(), std::int64_t{0});
      const double uneven = static_cast<double>(*std::max_element(work.begin(), work.end())) *
                            static_cast<double>(ranks) / static_cast<double>(all);
      EXPECT_LT(uneven, 1.15) << "round " << round << ", " << ranks << " ranks";
    }
  }
}

TEST(Pack, RefusesWhatHasNoRoom) {
  const std::vector<std::int64_t> lengths{5, 100};
  expect_error<ValueError>([&] { pack(lengths, {.ranks = 2, .tokens = 40}); },
                           {"sample 1", "100 tokens", "80"});
  expect_error<ValueError>([&] { pack(std::vector<std::int64_t>{0}, {.ranks = 2, .tokens = 40}); },
                           {"sample 0"});
  expect_error<ValueError>([&] { pack(lengths, {.ranks = 0, .tokens = 40}); }, {"0 ranks"});
}

}  // namespace
}  // namespace intarsia
