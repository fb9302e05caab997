#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "draw/svg.h"
#include "intarsia/schedule.h"

namespace intarsia {
namespace {

using enum ActionKind;

double begin_of(const ScheduleTimes& times) {
  double begin = -1;
  for (const auto& rank : times.ranks) {
    if (!rank.empty() && (begin < 0 || rank[0].begin < begin)) begin = rank[0].begin;
  }
  return std::max(begin, 0.0);
}

/// Without `&`.
std::string name_of(Action a) {
  a.with_next = false;
  return a.to_string();
}

std::string_view color_of(const Action& a, int ranks) {
  const bool later = a.stage >= ranks;  // another stage of the rank
  switch (a.kind) {
    case forward:
      return later ? "#8db9e4" : "#c5ddf4";
    case backward:
      return later ? "#7fc28b" : "#bfe3c4";
    case input_backward:
      return later ? "#e9a15b" : "#f9d5ae";
    default:
      return later ? "#b39bd1" : "#dccfec";
  }
}

}  // namespace

std::string times_text(const ScheduleTimes& times, double unit) {
  const double begin = begin_of(times);
  std::size_t width = 1;  // of a microbatch's number
  for (const auto& rank : times.ranks) {
    for (const TimedAction& a : rank) {
      width = std::max(width, concat(a.action.microbatch).size());
    }
  }
  std::string out;
  for (std::size_t r = 0; r < times.ranks.size(); ++r) {
    std::string line;
    for (const TimedAction& a : times.ranks[r]) {
      const auto column = [&](double at) {
        return static_cast<std::size_t>(std::lround((at - begin) / unit)) * (width + 2);
      };
      const std::size_t from = column(a.begin);
      const std::size_t to = std::max(column(a.end), from + width + 1);
      if (line.size() < from) line.resize(from, ' ');
      std::string word = name_of(a.action).substr(concat(a.action.stage).size());
      if (line.size() > from) word = concat('&', word);  // at the same time
      word.resize(std::max(word.size() + 1, to - std::min(to, line.size())), ' ');
      line += word;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += concat("rank ", r, "  ", line, '\n');
  }
  return out;
}

std::string times_svg(const ScheduleTimes& times, std::string_view title) {
  constexpr double kLeft = 70;
  constexpr double kWide = 900;
  constexpr double kTop = 82;
  constexpr double kLane = 26;
  constexpr double kBetween = 6;
  constexpr double kText = 12;
  constexpr double kLabel = 10;
  const double begin = begin_of(times);
  const double scale = times.total > 0 ? kWide / times.total : 0;
  const auto ranks = static_cast<int>(times.ranks.size());
  draw::Svg svg;
  svg.text_from(24, 24, title, {.size = 16, .bold = true});
  constexpr double kLines = 18;
  const std::array lines{
      concat("bubble ", number_text(std::round(times.bubble * 1000) / 10), " %"),
      std::string("blue: forward, green: backward, orange: of inputs alone, violet: of weights; "
                  "numbers are microbatches, darker ones of a later stage")};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    svg.text_from(24, 46 + static_cast<double>(i) * kLines, lines[i],
                  {.size = kText, .color = "#5a5a5a"});
  }
  for (int r = 0; r < ranks; ++r) {
    const double y = kTop + r * (kLane + kBetween);
    svg.text_from(24, y + kLane / 2, concat("rank ", r), {.size = kText});
    svg.rectangle({kLeft, y, kWide, kLane}, "#f4f4f4", "");
    const auto& actions = times.ranks[static_cast<std::size_t>(r)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const TimedAction& a = actions[i];
      // Two at a time share the height.
      const bool first = a.action.with_next;
      const bool second = i > 0 && actions[i - 1].action.with_next;
      const double height = first || second ? kLane / 2 : kLane;
      const draw::Area area{kLeft + (a.begin - begin) * scale, second ? y + kLane / 2 : y,
                            (a.end - a.begin) * scale, height};
      svg.rectangle(area, color_of(a.action, ranks), "#7a7a7a", 0.5);
      const std::string label = concat(a.action.microbatch);
      if (draw::width_of(label, kLabel) <= area.width) {
        svg.text(area.x + area.width / 2, area.y + height / 2, label, {.size = kLabel});
      }
    }
  }
  return svg.file(kLeft + kWide + 24, kTop + ranks * (kLane + kBetween) + 18, title);
}

std::string times_trace(const ScheduleTimes& times, double microseconds) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (std::size_t r = 0; r < times.ranks.size(); ++r) {
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", r},
                      {"tid", 0},
                      {"args", {{"name", concat("rank ", r)}}}});
    bool second = false;
    for (const TimedAction& a : times.ranks[r]) {
      events.push_back({{"ph", "X"},
                        {"name", name_of(a.action)},
                        {"pid", r},
                        {"tid", second ? 1 : 0},
                        {"ts", a.begin * microseconds},
                        {"dur", (a.end - a.begin) * microseconds}});
      second = a.action.with_next;
    }
  }
  const nlohmann::ordered_json out{{"displayTimeUnit", "ms"}, {"traceEvents", events}};
  return out.dump();
}

}  // namespace intarsia
