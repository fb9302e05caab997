#include "intarsia/step_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/text.h"
#include "intarsia/error.h"
#include "plan/report.h"

namespace intarsia {
namespace {

// ---- costs, as text: the entry `compute` of a topology file -------------------------------------

using Json = nlohmann::ordered_json;

constexpr std::string_view kWhere = "StepCosts";
constexpr double kNano = 1e-9;
constexpr double kMicro = 1e-6;
constexpr double kMega = 1e6;
constexpr double kGiga = 1e9;
constexpr double kKibi = 1024;

double number(const Json& json, std::string_view name) {
  if (!json.is_number() || !(json.get<double>() >= 0)) {
    fail<ValueError>(kWhere, name, " is ", json.dump(), ", not a number of at least 0");
  }
  return json.get<double>();
}

/// `[[size, figure], ...]` in units.
Curve read_curve(const Json& json, std::string_view name, double size_unit, double unit) {
  std::vector<Curve::Point> points;
  if (!json.is_array()) fail<ValueError>(kWhere, name, " is ", json.dump(), ", no list of pairs");
  for (const Json& pair : json) {
    if (!pair.is_array() || pair.size() != 2) {
      fail<ValueError>(kWhere, name, " has ", pair.dump(), ", no pair of a size and a figure");
    }
    points.emplace_back(number(pair[0], name) * size_unit, number(pair[1], name) * unit);
  }
  return Curve(std::move(points));
}

Json written(const Curve& curve, double size_unit, double unit) {
  Json out = Json::array();
  for (const auto& [size, figure] : curve.points()) {
    out.push_back({size / size_unit, figure / unit});
  }
  return out;
}

void read_collectives(const Json& json, StepCosts& out) {
  for (const Json& entry : json) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("ranks") ||
        !entry.contains("kib_us") || !entry["name"].is_string()) {
      fail<ValueError>(kWhere,
                       "an entry of collectives has no name, ranks and kib_us: ", entry.dump());
    }
    const auto ranks = static_cast<std::int64_t>(number(entry["ranks"], "ranks"));
    const Curve curve = read_curve(entry["kib_us"], "kib_us", kKibi, kMicro);
    if (curve.empty()) fail<ValueError>(kWhere, "kib_us has no pairs: ", entry.dump());
    out.collectives[{entry["name"].get<std::string>(), ranks}] = curve;
  }
}

void read_compute(const Json& compute, StepCosts& out) {
  if (!compute.is_object()) fail<ValueError>(kWhere, "compute is no object: ", compute.dump());
  for (const auto& [name, value] : compute.items()) {
    if (name == "call_us") {
      out.call = number(value, name) * kMicro;
    } else if (name == "products") {
      out.products = read_curve(value, name, kMega, kGiga);
    } else if (name == "memory") {
      out.memory = read_curve(value, name, kKibi, kGiga);
    } else if (name == "ns_per_element") {
      for (const auto& [op, time] : value.items())
        out.seconds_per_element[op] = number(time, op) * kNano;
    } else if (name == "attention") {
      out.attention = read_curve(value, name, 1, kGiga);
    } else if (name == "attention_backward") {
      out.attention_backward = read_curve(value, name, 1, kGiga);
    } else if (name == "skew") {
      out.skew = number(value, name);
    } else if (name == "hides") {
      out.hides = number(value, name);
      if (out.hides > 1) fail<ValueError>(kWhere, "hides is a part, at most 1, not ", out.hides);
    } else if (name == "collectives") {
      read_collectives(value, out);
    } else {
      fail<ValueError>(kWhere, "compute has no '", name,
                       "'; it has call_us, products, memory, ns_per_element, attention, "
                       "attention_backward, skew, hides, collectives");
    }
  }
}

// ---- the clock ----------------------------------------------------------------------------------

void check_order(std::span<const StepEvent> events) {
  using enum StepEvent::Kind;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const StepEvent& e = events[i];
    if (e.kind == collective && (e.ranks == nullptr || e.ranks->empty())) {
      fail<ValueError>("step_time", "event ", i, ", ", e.name, ", says among no ranks");
    }
    if (e.kind == wait && (e.of >= i || events[e.of].kind != collective)) {
      fail<ValueError>("step_time", "event ", i, " waits for event ", e.of,
                       ", which is no collective before it");
    }
  }
}

/// What the library's own formula says, where nothing was measured: see Topology.
double priced(const StepEvent& e, const Link& link, const Topology& topology) {
  const auto n = static_cast<double>(e.ranks->size());
  const double received = e.bytes * (n - 1) / n;
  if (e.name == "all_reduce") {
    return link.overhead + 2 * (n - 1) * link.latency +
           2 * received * topology.all_reduce / link.bandwidth;
  }
  const double relative = e.name == "all_gather" ? topology.all_gather : 1;
  return link.overhead + (n - 1) * link.latency + received * relative / link.bandwidth;
}

/// `12.3 ms`, with four digits that count.
std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g ms", seconds * 1e3);
  return text.data();
}

/// `14 kernels, 23 calls: mm 4, silu 2`: those that are there most.
std::string computed_text(std::span<const StepEvent> kernels) {
  constexpr std::size_t kMostNames = 6;
  std::map<std::string, int> counts;
  for (const StepEvent& e : kernels) {
    if (!e.is_call) ++counts[e.name];
  }
  std::vector<std::pair<int, std::string>> most;
  for (const auto& [name, count] : counts) most.emplace_back(-count, name);
  std::ranges::sort(most);
  std::vector<std::string> names;
  for (const auto& [count, name] : most) {
    if (names.size() < kMostNames) names.push_back(concat(name, ' ', -count));
  }
  if (most.size() > kMostNames) names.emplace_back("...");
  const auto calls = static_cast<std::size_t>(std::ranges::count_if(kernels, &StepEvent::is_call));
  return concat(count_text(kernels.size() - calls, "kernel"), ", ", count_text(calls, "call"),
                names.empty() ? "" : ": ", join(names, ", "));
}

class Clock {
 public:
  Clock(std::span<const StepEvent> events, const StepCosts& costs, const Mesh& mesh)
      : events_(events), costs_(costs), mesh_(mesh), flights_(events.size()) {}

  StepTime run() {
    for (std::size_t i = 0; i < events_.size(); ++i) {
      switch (events_[i].kind) {
        case StepEvent::Kind::kernel:
          compute(events_[i]);
          break;
        case StepEvent::Kind::collective:
          begin(i);
          break;
        case StepEvent::Kind::wait:
          wait(events_[i].of);
          break;
      }
    }
    out_.total = std::max(now_, free_);
    out_.waits = out_.total - out_.computes;
    return std::move(out_);
  }

 private:
  struct Flight {
    double begin = 0;
    double end = 0;
    bool is_over = false;
  };

  void compute(const StepEvent& e) {
    const double seconds = e.is_call ? costs_.call : kernel_seconds(e);
    out_.parts.push_back({e.name, false, now_, now_ + seconds});
    out_.computes += seconds;
    now_ += seconds;
    alone_ += seconds;
  }

  double kernel_seconds(const StepEvent& e) const {
    const double rate = costs_.topology.flops;
    double seconds = 0;
    if (e.products > 0) {
      seconds =
          e.products * e.count / (costs_.products.empty() ? rate : costs_.products.at(e.products));
    }
    if (e.attention > 0) {
      const bool back = e.name.find("backward") != std::string::npos;
      const Curve& curve = back ? costs_.attention_backward : costs_.attention;
      seconds +=
          e.attention / (curve.empty() ? rate * costs_.topology.attention : curve.at(e.head_size));
    }
    if (const auto found = costs_.seconds_per_element.find(e.name);
        found != costs_.seconds_per_element.end()) {
      seconds = std::max(seconds, e.elements * found->second);
    }
    // A copy reads and writes.
    const bool is_new = !e.in_place && !costs_.memory.empty() && e.bytes > 0;
    const double bandwidth =
        is_new ? costs_.memory.at(e.bytes) : 2 * costs_.topology.copy_bandwidth;
    return std::max(seconds, e.bytes / bandwidth);
  }

  /// The axes along which the ranks of a group differ.
  std::vector<std::int8_t> axes_of(const std::vector<std::int64_t>& ranks) const {
    std::vector<std::int8_t> axes;
    const auto first = mesh_.coordinate_of(ranks.front());
    for (std::size_t a = 0; first && a < mesh_.axes(); ++a) {
      const bool differs = std::ranges::any_of(ranks, [&](std::int64_t rank) {
        const auto at = mesh_.coordinate_of(rank);
        return at && (*at)[a] != (*first)[a];
      });
      if (differs) axes.push_back(static_cast<std::int8_t>(a));
    }
    return axes;
  }

  const Link& link_of(const StepEvent& e) {
    const Link*& link = links_[e.ranks.get()];
    if (link == nullptr) link = &costs_.topology.link(mesh_, axes_of(*e.ranks));
    return *link;
  }

  double collective_seconds(const StepEvent& e) {
    const auto found =
        costs_.collectives.find({e.name, static_cast<std::int64_t>(e.ranks->size())});
    if (found != costs_.collectives.end()) {
      // Beyond what was measured, bytes decide.
      const auto& [most, seconds] = found->second.points().back();
      return e.bytes <= most ? found->second.at(e.bytes) : seconds * e.bytes / most;
    }
    return priced(e, link_of(e), costs_.topology);
  }

  void begin(std::size_t i) {
    const StepEvent& e = events_[i];
    if (e.ranks->size() < 2) return;
    const double start = std::max(now_ + costs_.skew * std::sqrt(alone_), free_);
    free_ = start + collective_seconds(e);
    flights_[i] = {start, free_};
    out_.sends += free_ - start;
    out_.parts.push_back({e.name, true, start, free_});
  }

  /// What was computed meanwhile took a part of the processor from the collective, or it from them.
  void wait(std::size_t i) {
    Flight& f = flights_[i];
    if (std::exchange(f.is_over, true)) return;
    const double beside = std::clamp(std::min(now_, f.end) - f.begin, 0.0, f.end - f.begin);
    if (f.end > now_) alone_ = 0;
    now_ = std::max(now_, f.end) + (1 - costs_.hides) * beside;
  }

  std::span<const StepEvent> events_;
  const StepCosts& costs_;
  const Mesh& mesh_;
  double now_ = 0;
  double free_ = 0;   // when the last collective ends
  double alone_ = 0;  // what was computed since the rank waited for others
  std::vector<Flight> flights_;
  std::map<const void*, const Link*> links_;
  StepTime out_;
};

}  // namespace

Curve::Curve(std::vector<Point> points) : points_(std::move(points)) {
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const auto& [size, figure] = points_[i];
    const bool ascends = i == 0 || size > points_[i - 1].first;
    if (ascends && size > 0 && figure > 0) continue;
    fail<ValueError>(kWhere, "point ", i, " of a curve is (", size, ", ", figure,
                     "); sizes ascend, and all numbers are above 0");
  }
}

double Curve::at(double size) const {
  const auto next = std::ranges::upper_bound(points_, size, {}, &Point::first);
  if (next == points_.begin()) return points_.front().second;
  if (next == points_.end()) return points_.back().second;
  const auto& [low, at_low] = *std::prev(next);
  const double part = std::log(size / low) / std::log(next->first / low);
  return at_low * std::pow(next->second / at_low, part);
}

StepCosts StepCosts::parse(std::string_view text) {
  StepCosts out;
  out.topology = Topology::parse(text);
  const Json json = Json::parse(text);
  if (const auto compute = json.find("compute"); compute != json.end()) read_compute(*compute, out);
  return out;
}

StepCosts StepCosts::load(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail<ValueError>(kWhere, "cannot read ", path);
  std::ostringstream text;
  text << in.rdbuf();
  return parse(text.str());
}

std::string StepCosts::to_json() const {
  Json json = Json::parse(topology.to_json());
  Json& compute = json["compute"] = Json::object();
  compute["call_us"] = call / kMicro;
  compute["products"] = written(products, kMega, kGiga);
  compute["memory"] = written(memory, kKibi, kGiga);
  for (const auto& [op, time] : seconds_per_element) compute["ns_per_element"][op] = time / kNano;
  compute["attention"] = written(attention, 1, kGiga);
  compute["attention_backward"] = written(attention_backward, 1, kGiga);
  compute["skew"] = skew;
  compute["hides"] = hides;
  for (const auto& [what, curve] : collectives) {
    compute["collectives"].push_back(
        {{"name", what.first}, {"ranks", what.second}, {"kib_us", written(curve, kKibi, kMicro)}});
  }
  return json.dump(2);
}

StepTime step_time(std::span<const StepEvent> events, const StepCosts& costs, const Mesh& mesh) {
  check_order(events);
  return Clock(events, costs, mesh).run();
}

std::string schedule_text(std::span<const StepEvent> events) {
  check_order(events);
  std::string out;
  std::map<std::size_t, int> numbers;  // of collectives
  for (std::size_t i = 0; i < events.size(); ++i) {
    const StepEvent& e = events[i];
    if (e.kind == StepEvent::Kind::collective) {
      const int number = static_cast<int>(numbers.size()) + 1;
      numbers[i] = number;
      out += concat("begins   #", number, "  ", e.name, " of ",
                    bytes_text(static_cast<std::int64_t>(e.bytes)), " among ",
                    count_text(e.ranks->size(), "rank"), '\n');
    } else if (e.kind == StepEvent::Kind::wait) {
      out += concat("waits    #", numbers[e.of], '\n');
    } else {
      const std::size_t begin = i;
      while (i + 1 < events.size() && events[i + 1].kind == StepEvent::Kind::kernel) ++i;
      out += concat("computes     ", computed_text(events.subspan(begin, i + 1 - begin)), '\n');
    }
  }
  return out;
}

std::string StepTime::to_string() const {
  constexpr double kNothing = 1e-9;  // is what sums leave
  const double hidden = sends - waits > kNothing ? sends - waits : 0;
  return concat(milliseconds(total), ": computes ", milliseconds(computes), ", sends ",
                milliseconds(sends), ", of which ", milliseconds(hidden), " are hidden");
}

std::string StepTime::to_trace() const {
  constexpr double kMicro = 1e6;
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (const int track : {0, 1}) {
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", 0},
                      {"tid", track},
                      {"args", {{"name", track == 0 ? "computes" : "sends"}}}});
  }
  for (const Part& p : parts) {
    events.push_back({{"ph", "X"},
                      {"name", p.name},
                      {"pid", 0},
                      {"tid", p.sends ? 1 : 0},
                      {"ts", p.begin * kMicro},
                      {"dur", (p.end - p.begin) * kMicro}});
  }
  return nlohmann::ordered_json{{"traceEvents", std::move(events)}}.dump() + "\n";
}

}  // namespace intarsia
