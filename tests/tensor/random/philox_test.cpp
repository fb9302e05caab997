#include "tensor/random/philox.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <numbers>
#include <numeric>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "layout/all_layouts.h"

namespace intarsia {
namespace {

using testing::expect_error;
using testing::placements;
using Sizes = std::vector<std::int64_t>;
using Types = std::vector<at::ScalarType>;

constexpr std::uint64_t kKey = 0x0123456789abcdef;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A fill that has its parameters, all but the key.
using Fill = std::function<void(const at::Tensor&, const Region&, std::uint64_t)>;

template <class... Args>
Fill with(void (*fill)(const at::Tensor&, const Region&, std::uint64_t, Args...),
          std::type_identity_t<Args>... args) {
  return [=](const at::Tensor& piece, const Region& region, std::uint64_t key) {
    fill(piece, region, key, args...);
  };
}

Fill bernoulli(double p) {
  return [=](const at::Tensor& piece, const Region& region, std::uint64_t key) {
    fill_bernoulli(piece, region, key, p);
  };
}

const Types kFloats = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};
const Types kFloatsAndComplexes = {at::kDouble,     at::kFloat,         at::kHalf,
                                   at::kBFloat16,   at::kComplexDouble, at::kComplexFloat,
                                   at::kComplexHalf};
const Types kNumbers = {at::kDouble, at::kFloat,  at::kHalf,   at::kBFloat16,
                        at::kLong,   at::kInt,    at::kShort,  at::kChar,
                        at::kByte,   at::kUInt16, at::kUInt32, at::kUInt64};

struct Row {
  const char* name;
  Types types;
  Fill fill;
};

const std::vector<Row> kFills = {
    {"uniform", kFloatsAndComplexes, with(fill_uniform, -1.5, 2.25)},
    {"normal", kFloatsAndComplexes, with(fill_normal, 0.5, 2)},
    {"bernoulli", {at::kBool, at::kByte, at::kLong, at::kHalf, at::kDouble}, bernoulli(0.3)},
    {"exponential", kFloats, with(fill_exponential, 1.5)},
    {"integers", kNumbers, with(fill_integers, 3, 100)},
    {"cauchy", kFloats, with(fill_cauchy, 1, 0.5)},
    {"geometric", kNumbers, with(fill_geometric, 0.2)},
    {"log_normal", kFloats, with(fill_log_normal, 0, 0.5)},
};

/// The whole tensor of these sizes, filled by one rank.
at::Tensor whole(const Sizes& shape, at::ScalarType type, const Fill& fill,
                 std::uint64_t key = kKey) {
  const Boxes all = boxes(Layout(), shape, {});
  const at::Tensor out = at::empty(shape, type);
  fill(out, {all, shape}, key);
  return out;
}

/// An uninitialised tensor of these sizes in which no two elements are neighbours in memory, and
/// the first dimension is the fastest.
at::Tensor scattered(at::IntArrayRef sizes, at::ScalarType type) {
  Sizes reversed(sizes.rbegin(), sizes.rend());
  for (std::int64_t& size : reversed) size = 2 * size + 1;
  Sizes order(sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  at::Tensor out = at::empty(reversed, type).permute(order);
  for (std::int64_t d = 0; d < out.dim(); ++d) out = out.slice(d, 1, std::nullopt, 2);
  return out;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

struct Case {
  const char* mesh;
  std::vector<Placement> choices;
  std::vector<Sizes> shapes;
};

const std::vector<Case> kCases = {
    {"[a=2]", placements({"R"}), {{}, {0}, {7}, {3, 4}}},
    {"[a=2,b=2]",
     placements({"R", "S(0)", "S(1)", "SS(0,2)", "SS(1,3)"}),
     {{5, 7}, {1, 3}, {0, 4}, {3, 0}, {13, 2}}},
    {"[a=3,b=2]", placements({"S(0)", "S(2)", "SS(1,2)", "SS(2,2)"}), {{4, 5, 7}, {2, 8, 1}}},
    {"[a=2,b=2,c=2]", placements({"S(0)", "SS(0,3)", "S(1)"}), {{23, 3}}},
    {"[a=2,b=3]", placements({"S(1)", "S(3)", "SS(2,2)"}), {{2, 3, 4, 5}}},
};

/// Calls `check(layout, shape)` for every layout of every case.
template <class Check>
void for_each_layout(const Check& check) {
  std::size_t count = 0;
  for (const Case& c : kCases) {
    for (const Layout& layout : testing::all_layouts(Mesh::parse(c.mesh), c.choices)) {
      for (const Sizes& shape : c.shapes) {
        check(layout, shape);
        ++count;
      }
    }
  }
  std::cout << count << " pairs of layout and shape\n";
}

/// Fills the piece of every rank and compares it with its cut of the whole.
template <class MakePiece>
void compare_pieces(const Layout& layout, const Sizes& shape, const Row& row, at::ScalarType type,
                    const MakePiece& make) {
  const at::Tensor full = whole(shape, type, row.fill);
  for (std::int64_t rank = 0; rank < layout.mesh().size(); ++rank) {
    const Coordinate at = *layout.mesh().coordinate_of(rank);
    const Boxes held = boxes(layout, shape, at);
    const at::Tensor piece = make(held.local_shape(), type);
    row.fill(piece, {held, shape}, kKey);
    ASSERT_TRUE(same_bytes(piece, local_piece(full, layout, at)))
        << row.name << " of " << type << ", " << layout.to_string() << "\n"
        << piece << full;
  }
}

TEST(Philox, KnownAnswers) {  // those that Random123 publishes for philox4x32 with 10 rounds
  static_assert(philox4x32({0, 0, 0, 0}, 0) ==
                PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, ~std::uint64_t{0}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomFill, EveryLayoutGivesTheSameElements) {
  for_each_layout([&](const Layout& layout, const Sizes& shape) {
    for (const Row& row : kFills) {
      for (const at::ScalarType type : row.types) {
        compare_pieces(layout, shape, row, type,
                       [](const Shape& sizes, at::ScalarType t) { return at::empty(sizes, t); });
      }
    }
  });
}

TEST(RandomFill, StridesOfThePieceDoNotMatter) {
  for_each_layout([&](const Layout& layout, const Sizes& shape) {
    for (const Row& row : kFills) compare_pieces(layout, shape, row, row.types.back(), scattered);
  });
}

TEST(RandomFill, WritesNothingElse) {
  const at::Tensor around = at::full({6, 8}, 7.0);
  const Sizes shape{3, 4};
  const Boxes all = boxes(Layout(), shape, {});
  const at::Tensor piece = around.slice(0, 1, 4).slice(1, 0, 8, 2);
  fill_uniform(piece, {all, shape}, kKey, 0, 1);
  EXPECT_TRUE(same_bytes(piece, whole(shape, at::kFloat, with(fill_uniform, 0, 1))));
  piece.fill_(7);
  EXPECT_TRUE(at::equal(around, at::full({6, 8}, 7.0)));
}

TEST(RandomFill, ViewsWithALazySignAndMetaTensors) {
  const Sizes shape{5};
  const Boxes all = boxes(Layout(), shape, {});
  const Fill fill = with(fill_normal, 0, 1);
  const at::Tensor expected = whole(shape, at::kComplexFloat, fill);
  const at::Tensor conjugated = at::empty(shape, at::kComplexFloat).conj();
  ASSERT_TRUE(conjugated.is_conj());
  fill(conjugated, {all, shape}, kKey);
  EXPECT_TRUE(at::equal(conjugated.resolve_conj(), expected));

  const at::Tensor meta = at::empty(shape, at::device(at::kMeta).dtype(at::kFloat));
  fill(meta, {all, shape}, kKey);
  fill_bernoulli(meta, {all, shape}, kKey, meta);
}

TEST(RandomFill, IndicesBeyond32Bits) {
  const Sizes shape{1 << 20, 1 << 20};
  const Layout layout = Layout::parse("[a=1048576,b=262144] S(0),S(1)");
  const Boxes held = boxes(layout, shape, {1'000'000, 200'000});
  const at::Tensor piece = at::empty(held.local_shape(), at::kDouble);
  fill_uniform(piece, {held, shape}, kKey, 0, 1);
  ASSERT_EQ(piece.numel(), 4);
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::uint64_t index = (std::uint64_t{1'000'000} << 20) + 800'000 + i;
    const auto [a, b, c, d] = philox4x32(
        {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}, kKey);
    const std::uint64_t bits = (a | std::uint64_t{b} << 32) >> 11;
    EXPECT_EQ(piece[0][i].item<double>(), static_cast<double>(bits) * 0x1p-53);
  }
}

// A key means the same values in every version. These need no function of the C library.
TEST(RandomFill, ValuesStayAsTheyAre) {
  const auto list = [](const at::Tensor& t) {
    const at::Tensor whole_numbers = t.to(at::kLong);
    const auto* data = whole_numbers.const_data_ptr<std::int64_t>();
    return Sizes(data, data + t.numel());
  };
  EXPECT_EQ(list(whole({4}, at::kFloat, with(fill_uniform, 0, 1 << 24))),
            (Sizes{12946608, 5389837, 8535243, 8371848}));
  EXPECT_EQ(list(whole({4}, at::kLong, with(fill_integers, -50, 100))), (Sizes{-4, 41, -11, -21}));
  EXPECT_EQ(list(whole({8}, at::kBool, bernoulli(0.5))), (Sizes{1, 1, 1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(list(random_order(8, kKey)), (Sizes{2, 3, 5, 4, 7, 0, 1, 6}));
}

// --- Distributions, from 200,000 elements. The key is fixed, so that these do not fail by chance.

constexpr std::int64_t kMany = 200'000;

at::Tensor many(at::ScalarType type, const Fill& fill, std::uint64_t key = kKey) {
  return whole({kMany}, type, fill, key).to(at::kDouble);
}

double average(const at::Tensor& t) { return t.mean().item<double>(); }

void expect_moments(const at::Tensor& x, double mean_expected, double variance) {
  const double error = std::sqrt(variance / kMany);
  EXPECT_NEAR(average(x), mean_expected, 4 * error);
  EXPECT_NEAR(x.var().item<double>() / variance, 1, 0.05);
}

/// The greatest distance between the distribution of the values and `cdf`, times sqrt(n): more than
/// 1.95 in one of a thousand samples.
template <class Cdf>
double kolmogorov(const at::Tensor& values, const Cdf& cdf) {
  const at::Tensor sorted = std::get<0>(values.sort());
  const auto* x = sorted.const_data_ptr<double>();
  double most = 0;
  for (std::int64_t i = 0; i < kMany; ++i) {
    const double at = cdf(x[i]) * kMany;
    most = std::max({most, std::abs(at - i), std::abs(at - (i + 1))});
  }
  return most / std::sqrt(kMany);
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

TEST(RandomDistribution, Uniform) {
  for (const at::ScalarType type : kFloats)
    expect_moments(many(type, with(fill_uniform, -1, 3)), 1, 16.0 / 12);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const at::Tensor x = many(type, with(fill_uniform, -1, 3));
    EXPECT_LT(kolmogorov(x, [](double v) { return (v + 1) / 4; }), 1.95);
  }
}

TEST(RandomDistribution, Normal) {
  for (const at::ScalarType type : kFloats)
    expect_moments(many(type, with(fill_normal, 1, 3)), 1, 9);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const at::Tensor x = many(type, with(fill_normal, 1, 3));
    EXPECT_LT(kolmogorov(x, [](double v) { return normal_cdf((v - 1) / 3); }), 1.95);
    EXPECT_GT(x.max().item<double>(), 1 + 3 * 4.0);  // expected: 4.4 deviations
  }
  const at::Tensor zero = whole({100}, at::kFloat, with(fill_normal, 2, 0));
  EXPECT_TRUE(at::equal(zero, at::full({100}, 2.0)));
}

TEST(RandomDistribution, ComplexPartsAreIndependent) {
  const at::Tensor z = whole({kMany}, at::kComplexDouble, with(fill_normal, 0, 2));
  const at::Tensor re = at::real(z).contiguous();
  const at::Tensor im = at::imag(z).contiguous();
  expect_moments(re, 0, 2);
  expect_moments(im, 0, 2);
  EXPECT_NEAR(average(re * im), 0, 4 * 2 / std::sqrt(kMany));
  EXPECT_LT(kolmogorov(im, [](double v) { return normal_cdf(v / std::numbers::sqrt2); }), 1.95);
  const at::Tensor u = whole({kMany}, at::kComplexFloat, with(fill_uniform, 0, 1));
  const at::Tensor both = (at::real(u) * at::imag(u)).to(at::kDouble);
  EXPECT_NEAR(average(both), 0.25, 4 * std::sqrt(7.0 / 144 / kMany));
}

TEST(RandomDistribution, Exponential) {
  for (const at::ScalarType type : kFloats)
    expect_moments(many(type, with(fill_exponential, 0.5)), 2, 4);
  const at::Tensor x = many(at::kFloat, with(fill_exponential, 0.5));
  EXPECT_LT(kolmogorov(x, [](double v) { return 1 - std::exp(-v / 2); }), 1.95);
}

TEST(RandomDistribution, CauchyAndLogNormal) {
  const at::Tensor cauchy = many(at::kFloat, with(fill_cauchy, 1, 2));
  const auto cdf = [](double v) { return std::atan((v - 1) / 2) / std::numbers::pi + 0.5; };
  EXPECT_LT(kolmogorov(cauchy, cdf), 1.95);
  const at::Tensor log_normal = many(at::kFloat, with(fill_log_normal, 1, 0.5));
  EXPECT_GT(log_normal.min().item<double>(), 0);
  EXPECT_LT(kolmogorov(log_normal, [](double v) { return normal_cdf((std::log(v) - 1) / 0.5); }),
            1.95);
}

TEST(RandomDistribution, Bernoulli) {
  for (const double p : {0.0, 1e-3, 0.25, 0.9, 1.0}) {
    for (const at::ScalarType type : {at::kBool, at::kChar, at::kUInt64, at::kHalf, at::kFloat}) {
      const at::Tensor x = many(type, bernoulli(p));
      EXPECT_NEAR(average(x), p, 4 * std::sqrt(p * (1 - p) / kMany));
      EXPECT_TRUE(at::equal(x, x * x));  // all 0 or 1
    }
  }
}

TEST(RandomDistribution, BernoulliWithAProbabilityForEach) {
  const Sizes shape{100, 2000};
  const Boxes all = boxes(Layout(), shape, {});
  const at::Tensor out = at::empty(shape, at::kFloat);
  const at::Tensor same = at::full({}, 0.3, at::kDouble);
  fill_bernoulli(out, {all, shape}, kKey, same);
  EXPECT_TRUE(same_bytes(out, whole(shape, at::kFloat, bernoulli(0.3))));

  const at::Tensor p = at::linspace(0, 1, 2000);  // expands to all rows
  fill_bernoulli(out, {all, shape}, kKey, p);
  EXPECT_NEAR(average(out), 0.5, 0.01);
  EXPECT_NEAR(average(out.slice(1, 500, 600)), average(p.slice(0, 500, 600)), 0.02);
  EXPECT_EQ(average(out.slice(1, 0, 1)), 0);
  EXPECT_EQ(average(out.slice(1, 1999, 2000)), 1);

  const Layout layout = Layout::parse("[a=3,b=2] SS(1,7),S(0)");
  for (std::int64_t rank = 0; rank < 6; ++rank) {
    const Coordinate at = *layout.mesh().coordinate_of(rank);
    const Boxes held = boxes(layout, shape, at);
    const at::Tensor piece = scattered(held.local_shape(), at::kFloat);
    fill_bernoulli(piece, {held, shape}, kKey, local_piece(p.expand(shape), layout, at));
    EXPECT_TRUE(same_bytes(piece, local_piece(out, layout, at)));
  }
}

TEST(RandomDistribution, Integers) {
  for (const at::ScalarType type : kNumbers) {
    const at::Tensor x = many(type, with(fill_integers, 3, 10));
    const at::Tensor counts = x.to(at::kLong).bincount();
    ASSERT_EQ(counts.numel(), 13) << type;
    EXPECT_EQ(counts.slice(0, 0, 3).sum().item<std::int64_t>(), 0);
    const at::Tensor off = counts.slice(0, 3).to(at::kDouble) - kMany / 10.0;
    EXPECT_LT((off * off).sum().item<double>() / (kMany / 10.0), 27.9) << type;  // chi2, 9 degrees
  }
  EXPECT_NEAR(average(many(at::kBool, with(fill_integers, 0, 2))), 0.5, 0.005);
  EXPECT_NEAR(average(many(at::kChar, with(fill_integers, -128, 256))), -0.5, 0.7);
}

TEST(RandomDistribution, IntegersOfTheWholeRange) {
  const auto low = std::numeric_limits<std::int64_t>::min();
  const at::Tensor x = many(at::kLong, with(fill_integers, low, 0)) * 0x1p-64;
  EXPECT_LT(kolmogorov(x, [](double v) { return v + 0.5; }), 1.95);
  const at::Tensor u = many(at::kUInt64, with(fill_integers, 0, 0)) * 0x1p-64;
  EXPECT_LT(kolmogorov(u, [](double v) { return v; }), 1.95);
  const at::Tensor f = many(at::kFloat, with(fill_integers, 0, 0)) * 0x1p-64;
  EXPECT_LT(kolmogorov(f, [](double v) { return v; }), 1.95);
}

TEST(RandomDistribution, Geometric) {
  for (const at::ScalarType type : {at::kLong, at::kShort, at::kFloat, at::kDouble}) {
    const at::Tensor x = many(type, with(fill_geometric, 0.2));
    EXPECT_EQ(x.min().item<double>(), 1);
    EXPECT_TRUE(at::equal(x, x.round()));
    expect_moments(x, 5, 20);
    EXPECT_NEAR(average(x.eq(1).to(at::kDouble)), 0.2, 4 * std::sqrt(0.16 / kMany));
  }
  // Larger numbers than the dtype holds stop at its end.
  EXPECT_EQ(many(at::kByte, with(fill_geometric, 1e-9)).median().item<double>(), 255);
  EXPECT_EQ(whole({9}, at::kLong, with(fill_geometric, 1e-300)).min().item<std::int64_t>(),
            std::numeric_limits<std::int64_t>::max());
}

TEST(RandomDistribution, NeighboursKeysAndDistributionsAreIndependent) {
  const double bound = 4 / std::sqrt(kMany);
  const auto correlation = [](const at::Tensor& a, const at::Tensor& b) {
    return average((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()).item<double>();
  };
  const Fill uniform = with(fill_uniform, 0, 1);
  const at::Tensor x = many(at::kDouble, uniform);
  EXPECT_GT(correlation(x, x * x), 0.9);
  for (const std::int64_t lag : {1, 2, 3, 4, 256, 1000})
    EXPECT_LT(std::abs(correlation(x.slice(0, lag), x.slice(0, 0, -lag))), bound) << lag;
  for (const std::uint64_t bit : {0, 1, 31, 32, 63}) {
    const at::Tensor other = many(at::kDouble, uniform, kKey ^ (std::uint64_t{1} << bit));
    EXPECT_LT(std::abs(correlation(x, other)), bound) << bit;
  }
  for (const Row& row : kFills) {
    const std::string name = row.name;
    if (name == "uniform" || name == "cauchy") continue;
    EXPECT_LT(std::abs(correlation(x, many(at::kDouble, row.fill))), bound) << name;
  }
}

// --- Ends of ranges.

TEST(RandomRange, UniformNeverReachesItsEnd) {
  struct Ends {
    double from;
    double to;
  };
  for (const at::ScalarType type : kFloats) {
    for (const Ends& e : {Ends{0, 1},
                          {-1, 0},
                          {1, 1.01},
                          {-3, -2.99},
                          {-1e-3, 1e-3},
                          {0.1, 0.7},
                          {1000, 1003},
                          {-60000, 60000}}) {
      const at::Tensor x = many(type, with(fill_uniform, e.from, e.to));
      EXPECT_GE(x.min().item<double>(), e.from) << type;
      EXPECT_LT(x.max().item<double>(), e.to) << type;
    }
  }
}

TEST(RandomRange, UniformInANarrowRange) {
  const auto only = [](at::ScalarType type, double from, double to) {
    const at::Tensor x = many(type, with(fill_uniform, from, to));
    EXPECT_EQ(x.min().item<double>(), x.max().item<double>());
    return x[0].item<double>();
  };
  EXPECT_EQ(only(at::kFloat, 5, 5), 5);
  EXPECT_EQ(only(at::kFloat, 1, 1 + 1e-12), 1);
  EXPECT_EQ(only(at::kBFloat16, 1, 1.001), 1);
  EXPECT_EQ(only(at::kBFloat16, 1.001, 1.002), 1);  // holds neither: the nearest to the start
  EXPECT_EQ(only(at::kHalf, -1, std::nextafter(-1, 0)), -1);
  EXPECT_EQ(only(at::kHalf, 0, 1e-9), 0);
}

TEST(RandomRange, ExponentialIsPositiveAndFinite) {
  for (const at::ScalarType type : kFloats) {
    for (const double lambda : {1e-300, 1e-40, 1e-5, 1.0, 1e5, 1e40, 1e300, kInfinity}) {
      const at::Tensor x = whole({kMany}, type, with(fill_exponential, lambda));
      EXPECT_TRUE(x.gt(0).all().item<bool>()) << type << " " << lambda;
      EXPECT_TRUE(x.isfinite().all().item<bool>()) << type << " " << lambda;
    }
  }
}

TEST(RandomRange, IntegersThatFloatsCannotHoldStayInside) {
  const std::vector<std::pair<std::int64_t, std::uint64_t>> ranges = {
      {0, 2052}, {0, 4100}, {-2051, 2052}, {2049, 2}, {257, 600}, {-65000, 130000}};
  for (const at::ScalarType type : kFloats) {
    for (const auto& [low, range] : ranges) {
      if (type == at::kBFloat16 && range == 2) continue;  // no value inside
      const at::Tensor x = many(type, with(fill_integers, low, range));
      EXPECT_GE(x.min().item<double>(), static_cast<double>(low)) << type;
      EXPECT_LT(x.max().item<double>(), static_cast<double>(low) + static_cast<double>(range))
          << type;
    }
  }
}

TEST(RandomOrder, IsAPermutation) {
  for (const std::int64_t n : {0, 1, 2, 3, 7, 1000, 100'000}) {
    const at::Tensor order = random_order(n, kKey);
    EXPECT_EQ(order.scalar_type(), at::kLong);
    EXPECT_TRUE(at::equal(std::get<0>(order.sort()), at::arange(n)));
    EXPECT_TRUE(at::equal(order, random_order(n, kKey)));
  }
  EXPECT_FALSE(at::equal(random_order(1000, 1), random_order(1000, 2)));
}

TEST(RandomOrder, EveryOrderIsEquallyLikely) {
  std::array<int, 27> counts{};
  for (std::uint64_t key = 0; key < 6000; ++key) {
    const at::Tensor order = random_order(3, key);
    const auto* p = order.const_data_ptr<std::int64_t>();
    ++counts[static_cast<std::size_t>(p[0] * 9 + p[1] * 3 + p[2])];
  }
  EXPECT_EQ(std::count(counts.begin(), counts.end(), 0), 21);
  for (const int count : counts) EXPECT_TRUE(count == 0 || std::abs(count - 1000) < 116) << count;
}

// --- Refusals.

void expect_refusal(at::ScalarType type, const Fill& fill,
                    std::initializer_list<std::string> parts) {
  expect_error<ValueError>([&] { whole({2}, type, fill); }, parts);
}

TEST(RandomRefusal, NamesTheDtypeAndThoseThatWork) {
  const Fill uniform = with(fill_uniform, 0, 1);
  expect_refusal(at::kInt, uniform,
                 {"[uniform_]", "of Int", "Double, Float, Half, BFloat16, Comp"});
  expect_refusal(at::kBool, with(fill_normal, 0, 1), {"[normal_]", "of Bool"});
  expect_refusal(at::kComplexFloat, bernoulli(0.5), {"[bernoulli_]", "of ComplexFloat", "Bool"});
  expect_refusal(at::kLong, with(fill_exponential, 1), {"[exponential_]", "of Long"});
  expect_refusal(at::kComplexFloat, with(fill_integers, 0, 2), {"[random_]", "of ComplexFloat"});
  expect_refusal(at::kLong, with(fill_cauchy, 0, 1), {"[cauchy_]", "of Long"});
  expect_refusal(at::kBool, with(fill_geometric, 0.5), {"[geometric_]", "of Bool", "Byte"});
  expect_refusal(at::kLong, with(fill_log_normal, 0, 1), {"[log_normal_]", "of Long"});
  expect_refusal(at::kFloat8_e5m2, uniform, {"of Float8_e5m2"});
}

TEST(RandomRefusal, NamesTheParameters) {
  expect_refusal(at::kFloat, with(fill_uniform, 2, 1), {"from 2 to 1 in Float", "ascend"});
  expect_refusal(at::kFloat, with(fill_uniform, 0, kNaN), {"to nan"});
  expect_refusal(at::kHalf, with(fill_uniform, 0, 1e5), {"in Half", "-65504 to 65504"});
  expect_refusal(at::kDouble, with(fill_uniform, -1.7e308, 1.7e308), {"wide"});
  expect_refusal(at::kFloat, with(fill_normal, 0, -1), {"std is -1", "at least 0"});
  expect_refusal(at::kFloat, with(fill_normal, 0, kNaN), {"std is nan"});
  expect_refusal(at::kFloat, bernoulli(1.5), {"p is 1.5", "from 0 to 1"});
  expect_refusal(at::kFloat, with(fill_exponential, 0), {"lambda is 0", "more than 0"});
  expect_refusal(at::kFloat, with(fill_cauchy, 0, 0), {"sigma is 0"});
  expect_refusal(at::kFloat, with(fill_geometric, 1), {"p is 1", "between 0 and 1"});
  expect_refusal(at::kFloat, with(fill_log_normal, 0, 0), {"std is 0"});
  expect_error<ValueError>([] { random_order(-1, kKey); }, {"[randperm]", "n is -1"});
}

TEST(RandomRefusal, NamesTheRangeThatDoesNotFit) {
  expect_refusal(at::kChar, with(fill_integers, 0, 300),
                 {"300 values from 0", "Char", "-128 to 127"});
  expect_refusal(at::kByte, with(fill_integers, -1, 2), {"2 values from -1", "Byte", "0 to 255"});
  expect_refusal(at::kBool, with(fill_integers, 0, 3), {"Bool", "0 to 1"});
  expect_refusal(at::kLong, with(fill_integers, 0, 0), {"2^64 values from 0", "Long"});
  expect_refusal(at::kUInt64, with(fill_integers, 1, 0), {"2^64 values from 1", "UInt64"});
  expect_refusal(at::kHalf, with(fill_integers, 0, 70000), {"Half", "-65504 to 65504"});
}

TEST(RandomRefusal, NamesTheSizes) {
  const Sizes shape{4, 6};
  const Boxes half = boxes(Layout::parse("[a=2] S(0)"), shape, {1});
  const Region region{half, shape};
  expect_error<ValueError>(
      [&] {
        fill_uniform(at::empty({4, 6}), region, kKey, 0, 1);
      },
      {"[uniform_]", "sizes (4,6)", "[2,4)x[0,6) of (4,6)", "(2,6)"});
  expect_error<ValueError>(
      [&] {
        fill_uniform(at::empty({2, 1}).expand({2, 6}), region, kKey, 0, 1);
      },
      {"share memory", "strides (1,0)", "clone"});
  const at::Tensor piece = at::empty({2, 6});
  expect_error<ValueError>([&] { fill_bernoulli(piece, region, kKey, at::rand({5})); },
                           {"[bernoulli_]", "sizes (5)", "(2,6)"});
  expect_error<ValueError>([&] { fill_bernoulli(piece, region, kKey, at::ones({6}, at::kLong)); },
                           {"of Long", "floats"});
  expect_error<ValueError>([&] { fill_bernoulli(piece, region, kKey, at::arange(6.0)); },
                           {"from 0 to 5", "from 0 to 1"});
  expect_error<ValueError>([&] { fill_bernoulli(piece, region, kKey, at::full({6}, kNaN)); },
                           {"nan"});
}

}  // namespace
}  // namespace intarsia
