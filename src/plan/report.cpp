#include "plan/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace intarsia {
namespace {

constexpr int kDigits = 4;
constexpr double kMicroseconds = 1e6;
constexpr std::int64_t kCountedRanks = 4096;  // see traffic()

/// Without an exponent, and with as many digits that count wherever the point is.
std::string digits_text(double value) {
  if (value == 0) return "0";
  std::array<char, 64> text{};
  // Rounded first: 9.9996 is 10.00.
  std::snprintf(text.data(), text.size(), "%.*e", kDigits - 1, value);
  const int before = std::atoi(std::strchr(text.data(), 'e') + 1) + 1;
  std::snprintf(text.data(), text.size(), "%.*f", std::max(0, kDigits - before), value);
  return text.data();
}

/// The same on every machine: six digits that count.
double rounded(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return std::stod(text.data());
}

std::string padded(std::string_view text, std::size_t width, bool to_the_right = false) {
  const std::string space(width > text.size() ? width - text.size() : 0, ' ');
  return to_the_right ? concat(space, text) : concat(text, space);
}

/// Columns as wide as their longest text; those of numbers to the right.
std::string table(const std::vector<std::vector<std::string>>& rows,
                  const std::vector<bool>& numbers) {
  std::vector<std::size_t> widths(numbers.size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += concat(i == 0 ? "" : "  ", padded(row[i], widths[i], numbers[i]));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += concat(line, '\n');
  }
  return out;
}

std::string steps_text(const PlanReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < report.plan.steps.size(); ++i) {
    const Step& step = report.plan.steps[i];
    rows.push_back({concat(i + 1), std::string(to_text(step.kind)), step.axes_text(),
                    concat(step.before.placements_text(), " -> ", step.after.placements_text()),
                    bytes_text(report.steps[i].received), time_text(step.seconds),
                    step.chunks > 1 ? concat("in ", step.chunks, " parts") : ""});
  }
  if (rows.empty()) return "no steps: nothing is to be done\n";
  return table(rows, {true, false, false, false, true, true, false});
}

std::string bound_text(const PlanReport& report) {
  const std::string missing = bytes_text(report.in_all.missing);
  if (!report.has_bound()) {
    return concat("none where partial values are reduced or made; ", missing, " were elsewhere");
  }
  if (const auto ratio = report.ratio()) {
    return concat(missing, "; the plan receives ", digits_text(*ratio), " times that");
  }
  return "0 B: nothing must be received";
}

std::string peak_text(const PlanReport& report) {
  const std::string peak = bytes_text(report.plan.peak_bytes);
  if (!report.allowed_bytes) return concat(peak, " on a rank");
  return concat(peak, " on a rank, of ", bytes_text(*report.allowed_bytes), " allowed");
}

nlohmann::ordered_json steps_json(const PlanReport& report) {
  auto out = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < report.plan.steps.size(); ++i) {
    const Step& step = report.plan.steps[i];
    auto axes = nlohmann::ordered_json::array();
    for (const std::int8_t a : step.axes) {
      axes.push_back(step.before.mesh().name(static_cast<std::size_t>(a)));
    }
    out.push_back({{"kind", to_text(step.kind)},
                   {"axes", axes},
                   {"communicates", step.communicates()},
                   {"before", step.before.placements_text()},
                   {"after", step.after.placements_text()},
                   {"parts", step.chunks},
                   {"received_bytes", report.steps[i].received},
                   {"received_bytes_by_all", report.steps[i].received_by_all},
                   {"microseconds", rounded(step.seconds * kMicroseconds)}});
  }
  return out;
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  if (!value) return nullptr;
  return *value;
}

}  // namespace

PlanReport::PlanReport(Plan of) : plan(std::move(of)), in_all(traffic(plan)) {
  for (const Step& step : plan.steps) {
    steps.push_back(traffic(step, plan.shape, plan.element_size));
  }
}

bool PlanReport::has_bound() const {
  const Mesh& mesh = plan.from.mesh();
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const bool changes = plan.from.placement(a).is_partial() != plan.to.placement(a).is_partial();
    if (changes && mesh.size(a) > 1) return false;
  }
  return true;
}

std::optional<double> PlanReport::ratio() const {
  if (!has_bound() || in_all.missing == 0) return std::nullopt;
  return static_cast<double>(in_all.received) / static_cast<double>(in_all.missing);
}

bool PlanReport::counts_all_ranks() const { return plan.from.mesh().size() <= kCountedRanks; }

std::string PlanReport::tensor_text() const {
  const std::string sizes = concat('[', join(plan.shape, ", "), ']');
  return dtype.empty() ? concat(sizes, " of ", bytes_text(plan.element_size), " each")
                       : concat(dtype, sizes);
}

std::string PlanReport::topology_text() const {
  return topology.empty() ? "the standard topology" : topology;
}

std::string to_text(const PlanReport& report) {
  const Plan& plan = report.plan;
  const Mesh& mesh = plan.from.mesh();
  const Layout full = Layout::replicated(mesh);
  const std::int64_t bytes = piece_bytes(full, plan.shape, plan.element_size);
  const std::string head = table(
      {{"mesh", concat(mesh, ", ", count_text(static_cast<std::size_t>(mesh.size()), "rank"))},
       {"tensor", concat(report.tensor_text(), ", ", bytes_text(bytes))},
       {"from", plan.from.placements_text()},
       {"to", plan.to.placements_text()}},
      {false, false});
  const std::string some =
      report.counts_all_ranks() ? "" : concat(" of the first ", kCountedRanks, " ranks");
  const std::string foot =
      table({{"collectives", concat(plan.collectives())},
             {"received",
              concat(bytes_text(report.in_all.received), " by the rank that receives most", some)},
             {"lower bound", bound_text(report)},
             {"time", concat(time_text(plan.seconds), " by ", report.topology_text())},
             {"peak", peak_text(report)}},
            {false, false});
  return concat(head, '\n', steps_text(report), '\n', foot);
}

nlohmann::ordered_json to_json(const PlanReport& report) {
  const Plan& plan = report.plan;
  const auto name_or_null = [](const std::string& name) {
    return or_null(name.empty() ? std::nullopt : std::optional(name));
  };
  const auto ratio = report.ratio();
  return {{"mesh", plan.from.mesh().to_string()},
          {"ranks", plan.from.mesh().size()},
          {"shape", std::vector<std::int64_t>(plan.shape.begin(), plan.shape.end())},
          {"dtype", name_or_null(report.dtype)},
          {"element_size", plan.element_size},
          {"from", plan.from.placements_text()},
          {"to", plan.to.placements_text()},
          {"topology", name_or_null(report.topology)},
          {"allowed_bytes", or_null(report.allowed_bytes)},
          {"steps", steps_json(report)},
          {"in_all",
           {{"collectives", plan.collectives()},
            {"received_bytes", report.in_all.received},
            {"received_bytes_by_all", report.in_all.received_by_all},
            {"missing_bytes", report.in_all.missing},
            {"missing_bytes_by_all", report.in_all.missing_by_all},
            {"missing_is_bound", report.has_bound()},
            {"ratio", or_null(ratio ? std::optional(rounded(*ratio)) : std::nullopt)},
            {"counts_all_ranks", report.counts_all_ranks()},
            {"microseconds", rounded(plan.seconds * kMicroseconds)},
            {"peak_bytes", plan.peak_bytes}}}};
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 10 * 1024) return concat(bytes, " B");
  std::size_t unit = 0;
  double value = static_cast<double>(bytes) / 1024;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::string text = digits_text(value);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return concat(text, ' ', kUnits[unit]);
}

std::string time_text(double seconds) {
  return concat(digits_text(seconds * kMicroseconds), " us");
}

std::string count_text(std::size_t count, std::string_view what) {
  return concat(count, ' ', what, count == 1 ? "" : "s");
}

}  // namespace intarsia
