#include "plan/price.h"

#include <gtest/gtest.h>

#include "plan/two_layouts.h"

namespace intarsia {
namespace {

using testing::TwoLayouts;
using Sizes = std::vector<std::int64_t>;

constexpr Mask kA = 1;
constexpr Mask kB = 2;

/// `all_gather 114`, or `never`. Starting takes 100 s, a message 10 s, a byte 1 s, a copied byte a
/// quarter.
std::string text(const Price& p) {
  if (p.seconds == kNever) return "never";
  std::string seconds = std::to_string(p.seconds);
  seconds.erase(seconds.find_last_not_of('0') + 1);
  if (seconds.back() == '.') seconds.pop_back();
  return std::string(to_text(p.kind)) + " " + seconds;
}

std::string priced(const char* mesh, const Sizes& shape, const char* from, const char* to,
                   const Topology& topology = testing::slow_topology()) {
  TwoLayouts l(mesh, shape, from, to, std::nullopt, topology);
  const auto [x, y] = l.states(from, to);
  return text(l.prices.price(x, y));
}

TEST(Prices, OfLocalSteps) {
  EXPECT_EQ(priced("[a=2]", {8}, "S(0)", "S(0)"), "slice 0");
  EXPECT_EQ(priced("[a=2]", {8}, "R", "S(0)"), "slice 1");
  EXPECT_EQ(priced("[a=2]", {8}, "R", "P(sum)"), "make_partial 2");
  EXPECT_EQ(priced("[a=2]", {8}, "S(0)", "P(max)"), "make_partial 2");
  // Averages of parts would not be exact.
  EXPECT_EQ(priced("[a=2]", {8}, "R", "P(avg)"), "make_partial 2");
  EXPECT_EQ(priced("[a=2]", {8}, "S(0)", "P(avg)"), "never");
}

TEST(Prices, OfGathers) {
  // 4 B of 8 arrive in 1 round; those of an inner dimension are copied.
  EXPECT_EQ(priced("[a=2]", {8, 1}, "S(0)", "R"), "all_gather 114");
  EXPECT_EQ(priced("[a=2]", {1, 8}, "S(1)", "R"), "all_gather 116");
  // 12 B of 16 in 3 rounds.
  EXPECT_EQ(priced("[a=4]", {16}, "S(0)", "R"), "all_gather 142");
  EXPECT_EQ(priced("[a=2,b=2]", {16}, "S(0),S(0)", "R,R"), "all_gather 142");
  // As if pieces were even: 2.5 B of 5.
  EXPECT_EQ(priced("[a=2]", {5}, "S(0)", "R"), "all_gather 112.5");
  Topology half = testing::slow_topology();
  half.all_gather = 0.5;
  EXPECT_EQ(priced("[a=2]", {8}, "S(0)", "R", half), "all_gather 112");
}

TEST(Prices, OfReductions) {
  // all_reduce of 16 B: 2 rounds, 16 B, 4 s of copies. By an exchange: 1 round, 16 B, 24 s.
  EXPECT_EQ(priced("[a=2]", {16}, "P(sum)", "R"), "all_reduce 140");
  // Of 8 B both take 130 s; of 4 B: 125 s and 120 s.
  EXPECT_EQ(priced("[a=2]", {8}, "P(sum)", "R"), "all_reduce 130");
  EXPECT_EQ(priced("[a=2]", {4}, "P(sum)", "R"), "exchange_partials 120");
  // One of two partial values of 4 B arrives; both are copied three times.
  EXPECT_EQ(priced("[a=2]", {8}, "P(sum)", "S(0)"), "reduce_scatter 120");
  EXPECT_EQ(priced("[a=2,b=2]", {16}, "P(sum),P(sum)", "S(0),S(0)"), "reduce_scatter 154");
  // Different kinds are not reduced together.
  EXPECT_EQ(priced("[a=2,b=2]", {16}, "P(sum),P(avg)", "R,R"), "never");
  EXPECT_NE(priced("[a=2,b=2]", {16}, "P(sum),P(avg)", "R,P(avg)"), "never");
  Topology half = testing::slow_topology();
  half.all_reduce = 0.5;
  EXPECT_EQ(priced("[a=2]", {16}, "P(sum)", "R", half), "all_reduce 132");
}

TEST(Prices, OfExchanges) {
  // 4 of 8 B arrive in 1 round, and are copied twice.
  EXPECT_EQ(priced("[a=2]", {4, 4}, "S(0)", "S(1)"), "all_to_all 116");
  // 3 of 4 B in 3 rounds.
  EXPECT_EQ(priced("[a=4]", {4, 4}, "S(0)", "S(1)"), "all_to_all 134.5");
  // 2 B, of one rank.
  EXPECT_EQ(priced("[a=2,b=2]", {8}, "S(0),S(0)", "S(0),S(0) | 0:b>a"), "permute 113");
  // Some rank holds the other half; so all 4 B come from one.
  EXPECT_EQ(priced("[a=2,b=2]", {8}, "S(0),R", "R,S(0)"), "all_to_all 116");
  // Halves and thirds: 4 B of 12, from 2 ranks.
  EXPECT_EQ(priced("[a=2,b=3]", {12}, "S(0),R", "R,S(0)"), "all_to_all 116");
  // What is irregular: 4 B of 16, from all ranks.
  EXPECT_EQ(priced("[a=2,b=2]", {16}, "SS(0,4),S(0)", "S(0),S(0)"), "all_to_all 136");
  // Thirds of halves: b's chunk of the half that a rank has stays with it. 2 of 4 B arrive.
  EXPECT_EQ(priced("[a=2,b=3]", {12}, "S(0),R", "R,SS(0,2)"), "all_to_all 113");
}

TEST(Prices, AskTheLinkOfTheGroup) {
  TwoLayouts local("[a=2]", {8}, "R", "P(sum)");
  const auto [full, made] = local.states("R", "P(sum)");
  EXPECT_EQ(local.prices.price(full, made).group, 0U);
  Topology t = testing::slow_topology();
  t.axes = {{{"b"}, {1, 2, 4}}};
  TwoLayouts l("[a=2,b=2]", {8, 8}, "S(0),S(1)", "R,R", std::nullopt, t);
  const auto [x, y] = l.states("S(0),S(1)", "S(0),R");
  const Price fast = l.prices.price(x, y);
  EXPECT_EQ(fast.group, kB);
  // 16 of 32 B at 4 B/s, started in 2 s, 1 round of 1 s; 8 s of copies.
  EXPECT_EQ(text(fast), "all_gather 15");
  const auto [from, to] = l.states("S(0),S(1)", "R,R");
  EXPECT_EQ(l.prices.price(from, to).group, kA | kB);
  EXPECT_EQ(text(l.prices.price(from, to)), "all_gather 194");
  // 2 + 1 + 16 / 4 + 8, and 2 + 2 + 64 / 4 + 16.
  EXPECT_EQ(priced("[a=2,b=2]", {8, 8}, "R,S(0)", "R,S(1)", t), "all_to_all 15");
  EXPECT_EQ(priced("[a=2,b=2]", {8, 8}, "R,P(sum)", "R,R", t), "all_reduce 36");
}

/// The bytes that a step needs, and needs at least, with both pieces.
std::pair<std::int64_t, std::int64_t> peaks(const char* mesh, const Sizes& shape, const char* from,
                                            const char* to) {
  TwoLayouts l(mesh, shape, from, to);
  auto [x, y] = l.states(from, to);
  const Price p = l.prices.price(x, y);
  return {l.prices.peak(p, x, y), l.prices.least_peak(p, x, y)};
}

TEST(Prices, CountMemory) {
  using Peaks = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(peaks("[a=2]", {8}, "R", "S(0)"), Peaks(8 + 4, 12));
  EXPECT_EQ(peaks("[a=2]", {8}, "S(0)", "R"), Peaks(4 + 8, 12));
  // Gathered beside the new piece; in 64 parts of at most a byte, and two for each rank.
  EXPECT_EQ(peaks("[a=2]", {1, 8}, "S(1)", "R"), Peaks(4 + 8 + 8, 12 + 1 + 4));
  // Uneven: each sends its 3 B to 2 ranks, and receives 5.
  EXPECT_EQ(peaks("[a=2]", {5}, "S(0)", "R"), Peaks(3 + 5 + 11, 8 + 1 + 4));
  EXPECT_EQ(peaks("[a=2]", {16}, "P(sum)", "R"), Peaks(16 + 16 + 16, 48));
  // Sends 8 B, receives two partial values of 4 B.
  EXPECT_EQ(peaks("[a=2]", {8}, "P(sum)", "S(0)"), Peaks(8 + 4 + 16, 12 + 1 + 4));
  // Sends 8 B to 2 ranks and receives two of 8 B, in parts that are put together.
  EXPECT_EQ(peaks("[a=2,b=2]", {16}, "P(sum),S(0)", "S(0),R"), Peaks(16 + 32 + 16, 16 + 1 + 8));
  EXPECT_EQ(peaks("[a=2]", {4, 4}, "S(0)", "S(1)"), Peaks(8 + 8 + 16, 16 + 1 + 4));
}

TEST(Prices, SendInPartsWithinABound) {
  // Both pieces have 16 B, buffers of n parts 16 / n B and 4 more.
  const auto within = [](std::int64_t bytes) {
    TwoLayouts l("[a=2]", {4, 4}, "S(0)", "S(1)", bytes);
    auto [x, y] = l.states("S(0)", "S(1)");
    const Price p = l.prices.price_within(x, y);
    EXPECT_TRUE(p.seconds == kNever || l.prices.peak(p, x, y) <= bytes);
    return text(p) + (p.chunks == 1 ? "" : " in " + std::to_string(p.chunks));
  };
  EXPECT_EQ(within(32), "all_to_all 116");
  EXPECT_EQ(within(31), "all_to_all 216 in 2");  // 8 + 4
  EXPECT_EQ(within(28), "all_to_all 216 in 2");
  EXPECT_EQ(within(27), "all_to_all 316 in 3");  // 6 + 4
  EXPECT_EQ(within(21), "all_to_all 1616 in 16");
  EXPECT_EQ(within(20).substr(0, 5), "never");
}

TEST(Prices, NeverSendLocalStepsOrAnAllReduceInParts) {
  const auto within = [](const char* from, const char* to, std::int64_t bytes) {
    TwoLayouts l("[a=2]", {16}, from, to, bytes);
    auto [x, y] = l.states(from, to);
    return text(l.prices.price_within(x, y));
  };
  EXPECT_EQ(within("P(sum)", "R", 48), "all_reduce 140");
  EXPECT_EQ(within("P(sum)", "R", 47), "never");
  EXPECT_EQ(within("R", "S(0)", 24), "slice 2");  // both pieces
  EXPECT_EQ(within("R", "S(0)", 23), "never");
  EXPECT_EQ(within("R", "R", 16), "slice 0");  // one, that stays
}

}  // namespace
}  // namespace intarsia
