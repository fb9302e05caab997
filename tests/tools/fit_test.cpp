#include "tools/calibrate/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace intarsia::tools {
namespace {

/// What a link would take for groups of these sizes and buffers of 4 KiB to 16 MiB.
std::vector<Timing> timings_of(const Link& link, const std::vector<int>& groups) {
  std::vector<Timing> out;
  for (const int n : groups) {
    for (double bytes = 4096; bytes <= 16777216; bytes *= 4) {
      const double received = bytes * (n - 1) / n;
      out.push_back({n - 1.0, received, seconds_of(link, n - 1, received)});
    }
  }
  return out;
}

void expect_near(const Link& found, const Link& expected) {
  const auto tolerance = [](double value) { return 1e-6 * value + 1e-15; };
  EXPECT_NEAR(found.latency, expected.latency, tolerance(expected.latency));
  EXPECT_NEAR(found.overhead, expected.overhead, tolerance(expected.overhead));
  EXPECT_NEAR(found.bandwidth, expected.bandwidth, tolerance(expected.bandwidth));
}

TEST(Fit, RecoversALinkExactly) {
  for (const Link& link : {Link{2e-6, 8e-6, 200e9}, Link{3e-5, 1e-4, 1e9}, Link{5e-7, 1e-3, 25e9},
                           Link{1e-4, 1e-6, 1e7}}) {
    expect_near(fit_link(timings_of(link, {2, 4})), link);
    expect_near(fit_link(timings_of(link, {2, 8, 64})), link);
  }
}

TEST(Fit, WhatCannotBeToldApartIsOverhead) {
  expect_near(fit_link(timings_of({2e-6, 8e-6, 1e9}, {4})), {0, 14e-6, 1e9});
  expect_near(fit_link(timings_of({2e-6, 8e-6, 1e9}, {2})), {0, 10e-6, 1e9});
}

TEST(Fit, OnePartnerTellsLatencyFromOverhead) {
  const Link link{2e-6, 8e-6, 1e9};
  auto timings = timings_of(link, {3});
  timings.push_back({1, 4096, seconds_of(link, 1, 4096)});
  expect_near(fit_link(timings), link);
}

TEST(Fit, IsNeverNegative) {
  // Larger groups are faster: no latency above 0 fits.
  std::vector<Timing> timings{{1, 1e3, 2e-5}, {1, 1e6, 1.1e-3}, {3, 1e3, 1e-5}, {3, 1e6, 1e-3}};
  Link found = fit_link(timings);
  EXPECT_EQ(found.latency, 0);
  EXPECT_GT(found.overhead, 0);
  EXPECT_GT(found.bandwidth, 0);
  // More bytes take less: they cost nothing.
  found = fit_link(std::vector<Timing>{{1, 1e3, 2e-5}, {1, 1e6, 1e-5}});
  EXPECT_EQ(found.bandwidth, std::numeric_limits<double>::infinity());
  EXPECT_GT(found.overhead, 1e-5);
  // Bytes are all that counts.
  found = fit_link(std::vector<Timing>{{1, 1e3, 1e-6}, {1, 1e6, 1.1e-3}});
  EXPECT_EQ(found.overhead, 0);
  EXPECT_EQ(found.latency, 0);
}

TEST(Fit, SmallTimesCountAsMuchAsLargeOnes) {
  // A large time that is a tenth too long moves the overhead by little.
  auto timings = timings_of({2e-6, 50e-6, 1e9}, {2, 4});
  for (Timing& t : timings) t.seconds *= t.bytes > 4e6 ? 1.1 : 1;
  const Link found = fit_link(timings);
  EXPECT_NEAR(found.overhead, 50e-6, 5e-6);
  for (const Timing& t : timings) {
    EXPECT_LT(std::abs(relative_error(seconds_of(found, t.messages, t.bytes), t.seconds)), 0.1);
  }
}

TEST(Fit, FactorOfBytes) {
  EXPECT_NEAR(fit_factor(std::vector<Scaled>{{1, 2, 4}, {1, 4, 7}, {5, 10, 20}}), 1.5, 1e-12);
  EXPECT_EQ(fit_factor(std::vector<Scaled>{{5, 2, 4}}), 1) << "what is known takes longer already";
  EXPECT_EQ(fit_factor({}), 1);
}

TEST(Fit, Median) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 2, 4}), 3);
}

TEST(Fit, FourDigits) {
  EXPECT_DOUBLE_EQ(rounded(1.23456e-5), 1.235e-5);
  EXPECT_DOUBLE_EQ(rounded(1234567), 1235000);
  EXPECT_EQ(rounded(0), 0);
  EXPECT_EQ(rounded(std::numeric_limits<double>::infinity()),
            std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace intarsia::tools
