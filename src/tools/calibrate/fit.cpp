#include "tools/calibrate/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

namespace intarsia::tools {
namespace {

constexpr std::size_t kFigures = 3;  // overhead, latency, seconds per byte
using Figures = std::array<double, kFigures>;

/// What each figure adds to a time, relative to the time.
Figures row_of(const Timing& t) {
  return {1 / t.seconds, t.messages / t.seconds, t.bytes / t.seconds};
}

/// Solves the equations for the figures of `mask`; the others are 0. Nothing where these do not
/// determine them.
std::optional<Figures> solve(std::array<Figures, kFigures> matrix, Figures right, unsigned mask) {
  constexpr double kSmallest = 1e-10;  // of a pivot, in a matrix with ones on its diagonal
  const auto is_in = [&](std::size_t i) { return (mask >> i & 1U) != 0; };
  for (std::size_t i = 0; i < kFigures; ++i) {
    if (!is_in(i)) continue;
    if (matrix[i][i] < kSmallest) return std::nullopt;
    for (std::size_t r = 0; r < kFigures; ++r) {
      if (r == i || !is_in(r)) continue;
      const double times = matrix[r][i] / matrix[i][i];
      for (std::size_t c = 0; c < kFigures; ++c) matrix[r][c] -= times * matrix[i][c];
      right[r] -= times * right[i];
    }
  }
  Figures out{};
  for (std::size_t i = 0; i < kFigures; ++i) {
    if (is_in(i)) out[i] = right[i] / matrix[i][i];
  }
  return out;
}

double squared_errors(const Figures& figures, std::span<const Timing> timings) {
  double sum = 0;
  for (const Timing& t : timings) {
    const Figures row = row_of(t);
    double error = -1;
    for (std::size_t i = 0; i < kFigures; ++i) error += figures[i] * row[i];
    sum += error * error;
  }
  return sum;
}

}  // namespace

double seconds_of(const Link& link, double messages, double bytes) {
  return link.overhead + messages * link.latency + bytes / link.bandwidth;
}

Link fit_link(std::span<const Timing> timings) {
  // Normal equations, with each figure in a unit that makes the diagonal 1: bytes and calls differ
  // by many powers of ten.
  std::array<Figures, kFigures> matrix{};
  Figures right{};
  for (const Timing& t : timings) {
    const Figures row = row_of(t);
    for (std::size_t i = 0; i < kFigures; ++i) {
      for (std::size_t j = 0; j < kFigures; ++j) matrix[i][j] += row[i] * row[j];
      right[i] += row[i];
    }
  }
  Figures unit{};
  for (std::size_t i = 0; i < kFigures; ++i) {
    unit[i] = matrix[i][i] > 0 ? 1 / std::sqrt(matrix[i][i]) : 0;
  }
  for (std::size_t i = 0; i < kFigures; ++i) {
    for (std::size_t j = 0; j < kFigures; ++j) matrix[i][j] *= unit[i] * unit[j];
    right[i] *= unit[i];
  }

  // The best without negative figures is the best of some of the figures: there are seven choices.
  Figures best{};
  double least = squared_errors(best, timings);
  for (unsigned mask = 1; mask < (1U << kFigures); ++mask) {
    auto figures = solve(matrix, right, mask);
    if (!figures) continue;
    for (std::size_t i = 0; i < kFigures; ++i) (*figures)[i] *= unit[i];
    if (std::ranges::any_of(*figures, [](double f) { return f < 0; })) continue;
    // Of choices that fit alike the first is taken: overhead before latency.
    const double errors = squared_errors(*figures, timings);
    if (errors >= least * (1 - 1e-9)) continue;
    best = *figures;
    least = errors;
  }
  Link out{.latency = best[1], .overhead = best[0]};
  if (best[2] > 0) out.bandwidth = 1 / best[2];
  return out;
}

double fit_factor(std::span<const Scaled> times) {
  double above = 0;
  double below = 0;
  for (const Scaled& t : times) {
    const double unit = t.unit / t.seconds;
    above += unit * (1 - t.known / t.seconds);
    below += unit * unit;
  }
  return above > 0 && below > 0 ? above / below : 1;
}

double relative_error(double fitted, double measured) { return fitted / measured - 1; }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double rounded(double value) {
  constexpr int kDigits = 4;
  if (value == 0 || !std::isfinite(value)) return value;
  const int shift = kDigits - 1 - static_cast<int>(std::floor(std::log10(std::abs(value))));
  const double factor = std::pow(10.0, std::abs(shift));
  return shift >= 0 ? std::round(value * factor) / factor : std::round(value / factor) * factor;
}

}  // namespace intarsia::tools
