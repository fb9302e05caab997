#include "intarsia/phase.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/text.h"
#include "intarsia/waiting.h"
#include "world/guard/program.h"

namespace intarsia {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// The steps that are still known; the first ones of a program warm up, and are left out.
std::vector<Times::Step> last_steps(const Times& times) {
  constexpr std::uint64_t kWarm = 2;
  const std::uint64_t end = times.steps();
  const std::uint64_t begin = end > Times::kSteps ? end - Times::kSteps : end > kWarm ? kWarm : 0;
  std::vector<Times::Step> steps;
  for (std::uint64_t n = begin; n < end; ++n) {
    if (const auto step = times.step(n)) steps.push_back(*step);
  }
  return steps;
}

template <class Part>
double median_of(const std::vector<Times::Step>& steps, const Part& part) {
  std::vector<double> seconds;
  for (const Times::Step& step : steps) seconds.push_back(part(step) * 1e-6);
  return median(std::move(seconds));
}

RankTimes read(std::int64_t rank, const Times& times) {
  const std::vector<Times::Step> steps = last_steps(times);
  RankTimes out{.rank = rank, .steps = steps.size(), .own = {}};
  const std::vector<std::string> names = times.phases();
  for (std::size_t i = 0; i < names.size() && !steps.empty(); ++i) {
    out.own.push_back({names[i], median_of(steps, [i](const Times::Step& s) { return s.own[i]; })});
  }
  out.waited = median_of(steps, [](const Times::Step& s) { return s.waited; });
  return out;
}

/// As labels of Prometheus are written.
std::string escaped(std::string_view label) {
  std::string text;
  for (const char c : label) {
    if (c == '"' || c == '\\') text += '\\';
    text += c == '\n' ? ' ' : c;
  }
  return text;
}

std::string number(double value, const char* format) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace

Phase::Phase(std::string_view name) { begin_phase(name); }

Phase::~Phase() { end_phase(); }

double RankTimes::of(std::string_view phase) const {
  for (const OfPhase& time : own) {
    if (time.phase == phase) return time.seconds;
  }
  return 0;
}

double RankTimes::total() const {
  double sum = waited;
  for (const OfPhase& time : own) sum += time.seconds;
  return sum;
}

std::vector<RankTimes> Program::step_times() {
  const std::scoped_lock lock(mutex_);
  if (guards().empty()) return {read(0, *times_)};
  std::vector<RankTimes> all;
  const std::vector<const Board*>& boards = guards().back().all;
  for (std::size_t rank = 0; rank < boards.size(); ++rank) {
    all.push_back(read(static_cast<std::int64_t>(rank), boards[rank]->times()));
  }
  return all;
}

std::vector<RankTimes> step_times() { return Program::instance().step_times(); }

std::optional<Straggler> find_straggler(std::span<const RankTimes> times, double least_share) {
  std::optional<Straggler> worst;
  std::vector<double> totals;
  for (const RankTimes& of_rank : times) totals.push_back(of_rank.total());
  const double step = median(totals);
  if (times.size() < 2 || step <= 0) return std::nullopt;
  for (const RankTimes& of_rank : times) {
    for (const auto& [phase, seconds] : of_rank.own) {
      std::vector<double> others;
      for (const RankTimes& other : times) {
        if (other.rank != of_rank.rank) others.push_back(other.of(phase));
      }
      const double usual = median(std::move(others));
      const double share = (seconds - usual) / step;
      if (share < least_share || (worst && share <= worst->share)) continue;
      worst = {of_rank.rank, phase, seconds, usual, share};
    }
  }
  return worst;
}

std::string Straggler::to_string() const {
  return concat("rank ", rank, " is slow in ", phase, ": ", number(seconds, "%.3g"),
                " s of a step where others take ", number(others, "%.3g"), " s, ",
                number(share * 100, "%.0f"), " % of the step");
}

std::string to_prometheus(std::span<const RankTimes> times) {
  std::string text =
      "# HELP intarsia_own_seconds Time of a step in a phase, without waiting for other ranks.\n"
      "# TYPE intarsia_own_seconds gauge\n";
  for (const RankTimes& of_rank : times) {
    for (const auto& [phase, seconds] : of_rank.own) {
      text += concat("intarsia_own_seconds{rank=\"", of_rank.rank, "\",phase=\"", escaped(phase),
                     "\"} ", number(seconds, "%.6f"), "\n");
    }
  }
  text +=
      "# HELP intarsia_waited_seconds Time of a step that a rank waits for others.\n"
      "# TYPE intarsia_waited_seconds gauge\n";
  for (const RankTimes& of_rank : times) {
    text += concat("intarsia_waited_seconds{rank=\"", of_rank.rank, "\"} ",
                   number(of_rank.waited, "%.6f"), "\n");
  }
  return text;
}

}  // namespace intarsia
