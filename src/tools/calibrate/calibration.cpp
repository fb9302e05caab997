#include "tools/calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>

#include "base/text.h"
#include "intarsia/error.h"
#include "plan/report.h"
#include "tools/calibrate/compute.h"
#include "tools/calibrate/fit.h"
#include "tools/calibrate/measure.h"

namespace intarsia::tools {
namespace {

constexpr std::int64_t kCopiedBytes = std::int64_t{64} << 20;  // more than a core's share of caches
constexpr std::int64_t kMatrixSide = 768;
constexpr double kGiga = 1e9;
constexpr double kPercent = 100;

/// A trial with what it took, and what the fit makes of it.
struct Finding {
  Trial trial;
  double seconds = 0;
  double fitted = 0;
};

/// A link, the groups that it is measured by, and what was found.
struct Subject {
  std::string name;
  std::vector<Comm> groups;
  bool is_level = false;  // where the other collectives are measured too
  std::vector<Finding> findings = {};
  Link link = {};
};

// ---- what is measured ----

std::int64_t smallest_factor(std::int64_t value) {
  for (std::int64_t f = 2; f * f <= value; ++f) {
    if (value % f == 0) return f;
  }
  return value;
}

/// Groups inside of blocks of `ranks`, but not inside of blocks of `inner`: of several sizes if
/// possible, since only these tell the cost of a message from that of a collective. All groups of a
/// kind work at the same time, as they do along an axis.
std::vector<Comm> groups_of_level(World& world, std::int64_t ranks, std::int64_t inner) {
  const std::int64_t blocks = ranks / inner;
  const std::int64_t few = smallest_factor(blocks);
  const Mesh mesh(
      {{"apart", world.size() / ranks}, {"far", blocks / few}, {"near", few}, {"inner", inner}});
  std::vector<Comm> out;
  out.push_back(world.along(mesh, {"far", "near", "inner"}));
  if (inner > 1) out.push_back(world.along(mesh, {"far", "near"}));
  if (few < blocks) out.push_back(world.along(mesh, {"near"}));
  return out;
}

std::vector<Subject> levels_of(World& world, const std::vector<Topology::Level>& levels) {
  std::vector<Subject> out;
  std::int64_t inner = 1;
  for (const Topology::Level& level : levels) {
    const std::int64_t ranks = level.ranks == 0 ? world.size() : level.ranks;
    out.push_back({concat("level ", level.name), groups_of_level(world, ranks, inner), true});
    inner = ranks;
  }
  return out;
}

/// Every set of axes of more than one rank.
std::vector<std::vector<std::string>> sets_of_axes(const Mesh& mesh) {
  std::vector<std::vector<std::string>> out;
  for (std::uint32_t set = 1; set < (1U << mesh.axes()); ++set) {
    std::vector<std::string> names;
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      if ((set >> a & 1U) != 0) names.push_back(mesh.name(a));
    }
    const bool has_one = std::ranges::any_of(names, [&](auto& n) { return mesh.size(n) == 1; });
    if (!has_one) out.push_back(std::move(names));
  }
  return out;
}

/// Collectives over the groups, in all sizes.
void add_trials(Subject& subject, const std::vector<std::int64_t>& sizes) {
  const bool one_size = std::ranges::all_of(
      subject.groups, [&](const Comm& g) { return g.size() == subject.groups[0].size(); });
  std::vector<Measured> kinds{Measured::all_to_all};
  if (one_size && subject.groups[0].size() > 2) kinds.push_back(Measured::one_partner);
  if (subject.is_level) {
    kinds.insert(kinds.end(), {Measured::all_gather, Measured::all_reduce});
  }
  for (const Comm& group : subject.groups) {
    for (const Measured kind : kinds) {
      for (const std::int64_t size : sizes) {
        const std::int64_t part = std::max<std::int64_t>(1, size / kElementSize / group.size());
        subject.findings.push_back({{group, kind, part * group.size()}});
      }
    }
  }
}

/// What each rank does by itself, per second.
struct Rates {
  double copied_bytes = 0;
  double flops = 0;
  double attention_flops = 0;
};

/// Measures all of it at once, with what ranks do by themselves.
Rates measure_all(World& world, std::vector<Subject>& subjects, int repeats) {
  std::vector<Trial> trials{{world.everyone(), Measured::copy, kCopiedBytes / kElementSize},
                            {world.everyone(), Measured::matmul, kMatrixSide * kMatrixSide},
                            {world.everyone(), Measured::attention, kAttention.elements()}};
  for (const Subject& s : subjects) {
    for (const Finding& f : s.findings) trials.push_back(f.trial);
  }
  const std::vector<double> seconds = measure(world, trials, repeats);
  auto next = seconds.begin();
  constexpr double kOperations = 2.0 * kMatrixSide * kMatrixSide * kMatrixSide;
  Rates rates;
  rates.copied_bytes = static_cast<double>(kCopiedBytes) / *next++;
  rates.flops = kOperations / *next++;
  rates.attention_flops = kAttention.operations() / *next++;
  for (Subject& s : subjects) {
    for (Finding& f : s.findings) f.seconds = *next++;
  }
  return rates;
}

// ---- what it comes to ----

bool is_exchange(const Finding& f) {
  return f.trial.what == Measured::all_to_all || f.trial.what == Measured::one_partner;
}

/// Fits the link. What is exchanged is written to memory too, so no link is faster than copies are,
/// which also bounds one whose times are so noisy that they do not grow with bytes.
void fit_exchanges(Subject& subject, double copy_bandwidth) {
  std::vector<Timing> timings;
  for (const Finding& f : subject.findings) {
    if (is_exchange(f)) timings.push_back({f.trial.messages(), f.trial.received(), f.seconds});
  }
  const Link found = fit_link(timings);
  subject.link = {rounded(found.latency), rounded(found.overhead),
                  rounded(std::min(found.bandwidth, copy_bandwidth))};
  for (Finding& f : subject.findings) {
    if (is_exchange(f)) f.fitted = seconds_of(subject.link, f.trial.messages(), f.trial.received());
  }
}

/// The time of a collective as plans price it: what does not depend on the price of its bytes, and
/// its bytes at that of an all_to_all.
Scaled parts_of(const Finding& f, const Link& link, double copy_bandwidth) {
  Scaled out{seconds_of(link, f.trial.messages(), 0), f.trial.received() / link.bandwidth,
             f.seconds};
  if (f.trial.what == Measured::all_reduce) {
    out.known += static_cast<double>(f.trial.bytes()) / copy_bandwidth;
  }
  return out;
}

/// What a byte costs in a collective relative to one in an all_to_all: from sizes of at least
/// `from_bytes`, of all levels.
double fit_relative(std::vector<Subject>& subjects, Measured what, double copy_bandwidth,
                    std::int64_t from_bytes) {
  std::vector<Scaled> times;
  for (const Subject& s : subjects) {
    for (const Finding& f : s.findings) {
      if (f.trial.what != what || f.trial.bytes() < from_bytes) continue;
      times.push_back(parts_of(f, s.link, copy_bandwidth));
    }
  }
  const double factor = rounded(fit_factor(times));
  for (Subject& s : subjects) {
    for (Finding& f : s.findings) {
      if (f.trial.what != what) continue;
      const Scaled parts = parts_of(f, s.link, copy_bandwidth);
      f.fitted = parts.known + factor * parts.unit;
    }
  }
  return factor;
}

/// What was measured, as it is: links are three figures, and that is not enough for times.
std::map<std::pair<std::string, std::int64_t>, Curve> curves_of(const Subject& subject) {
  std::map<std::pair<std::string, std::int64_t>, std::vector<Curve::Point>> points;
  for (const Finding& f : subject.findings) {
    if (f.trial.what == Measured::one_partner) continue;
    points[{std::string(to_text(f.trial.what)), f.trial.comm.size()}].emplace_back(
        f.trial.bytes(), rounded(f.seconds));
  }
  std::map<std::pair<std::string, std::int64_t>, Curve> out;
  for (auto& [what, curve] : points) out.emplace(what, Curve(std::move(curve)));
  return out;
}

// ---- in words ----

std::string digits_text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.4g", value);
  return buffer;
}

std::string percent_text(double part) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%+.0f%%", part * kPercent);
  return buffer;
}

double error_of(const Finding& f) { return relative_error(f.fitted, f.seconds); }

/// The finding of these kinds that the fit is farthest off for.
template <class Wanted>
std::string worst_text(const Subject& subject, const Wanted& wanted) {
  double worst = 0;
  for (const Finding& f : subject.findings) {
    if (wanted(f) && std::abs(error_of(f)) > std::abs(worst)) worst = error_of(f);
  }
  return percent_text(worst);
}

std::string row_text(const Finding& f) {
  char buffer[160];
  std::snprintf(buffer, sizeof buffer, "  %-11s  %5lld  %9s  %12s  %12s  %6s\n",
                std::string(to_text(f.trial.what)).c_str(),
                static_cast<long long>(f.trial.comm.size()), bytes_text(f.trial.bytes()).c_str(),
                time_text(f.seconds).c_str(), time_text(f.fitted).c_str(),
                percent_text(error_of(f)).c_str());
  return buffer;
}

std::string subject_text(const Subject& s) {
  std::string out =
      concat(s.name, ": overhead ", time_text(s.link.overhead), ", latency ",
             time_text(s.link.latency), ", ", digits_text(s.link.bandwidth / kGiga), " GB/s\n",
             "  the fit is off by at most ", worst_text(s, is_exchange), " for all_to_all");
  for (const Measured what : {Measured::all_gather, Measured::all_reduce}) {
    if (!s.is_level) break;
    out += concat(", ", worst_text(s, [&](const Finding& f) { return f.trial.what == what; }),
                  " for ", to_text(what));
  }
  out += "\n  collective   ranks       size        median           fit     off\n";
  for (const Finding& f : s.findings) out += row_text(f);
  return out + '\n';
}

std::string report_text(const World& world, const std::vector<Subject>& subjects,
                        const Topology& topology, int repeats) {
  std::string out =
      concat(world.size(), " ranks on ", world.device().str(), ", float32; medians of ", repeats,
             " repeats, each by its slowest rank\n\n");
  for (const Subject& s : subjects) out += subject_text(s);
  out += concat("a byte of all_gather costs ", digits_text(topology.all_gather),
                " times one of all_to_all, a byte of all_reduce ", digits_text(topology.all_reduce),
                " times\ncopies within a rank: ", digits_text(topology.copy_bandwidth / kGiga),
                " GB/s, matrix products: ", digits_text(topology.flops / kGiga),
                " gigaflops, attention: ", digits_text(topology.attention), " of that\n");
  return out;
}

}  // namespace

void check(const CalibrationOptions& options, std::int64_t ranks) {
  std::int64_t inner = 1;
  for (const Topology::Level& level : options.levels) {
    std::vector<std::int64_t> possible;
    for (std::int64_t n = 2 * inner; n < ranks; n += inner) {
      if (ranks % n == 0) possible.push_back(n);
    }
    if (std::ranges::find(possible, level.ranks) == possible.end()) {
      fail<ValueError>(
          "calibrate", "there is no level of ", level.ranks, " ranks in a job of ", ranks,
          inner > 1 ? concat(" above one of ", inner) : "",
          possible.empty() ? "; leave it out" : concat("; possible are ", join(possible, ", ")));
    }
    inner = level.ranks;
  }
  if (options.mesh && (options.mesh->size() != ranks || options.mesh->highest() != ranks - 1)) {
    fail<ValueError>("calibrate", "the mesh ", *options.mesh, " has ", options.mesh->size(),
                     " ranks up to ", options.mesh->highest(), ", and this job ", ranks,
                     "; give a mesh of all ranks, so that all are at work while one is measured");
  }
}

Calibration calibrate(World& world, const CalibrationOptions& options) {
  Calibration out;
  Topology& topology = out.costs.topology;
  topology.levels = options.levels;
  topology.levels.push_back({"all"});
  std::vector<Subject> subjects = levels_of(world, topology.levels);
  if (options.mesh) {
    for (auto& names : sets_of_axes(*options.mesh)) {
      subjects.push_back({concat("axes ", join(names, "+")), {world.along(*options.mesh, names)}});
      topology.axes.push_back({std::move(names)});
    }
  }
  for (Subject& s : subjects) add_trials(s, options.sizes);

  const Rates rates = measure_all(world, subjects, options.repeats);
  topology.copy_bandwidth = rounded(rates.copied_bytes);
  topology.flops = rounded(rates.flops);
  topology.attention = rounded(rates.attention_flops / rates.flops);
  for (Subject& s : subjects) fit_exchanges(s, topology.copy_bandwidth);
  const std::int64_t large = options.sizes.back() / 5;  // the last two sizes, with their rounding
  const auto relative = [&](Measured what) {
    return fit_relative(subjects, what, topology.copy_bandwidth, large);
  };
  topology.all_gather = relative(Measured::all_gather);
  topology.all_reduce = relative(Measured::all_reduce);
  auto next = subjects.begin();
  for (Topology::Level& level : topology.levels) level.link = (next++)->link;
  for (Topology::Fused& fused : topology.axes) fused.link = (next++)->link;
  out.report = report_text(world, subjects, topology, options.repeats);
  if (options.levels.empty()) out.costs.collectives = curves_of(subjects[0]);
  ComputeOptions computing{.repeats = std::max(3, options.repeats / 3)};
  if (options.quick) computing.operand_bytes /= 16;
  measure_compute(world, computing, out.costs);
  out.report += compute_text(out.costs);
  return out;
}

}  // namespace intarsia::tools
