#include "intarsia/topology.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/text.h"
#include "intarsia/error.h"
#include "layout/coordinates.h"

namespace intarsia {
namespace {

using Json = nlohmann::json;

constexpr double kMicro = 1e-6;
constexpr double kGiga = 1e9;
constexpr std::string_view kWhere = "Topology";

void check_names(const Json& object, std::initializer_list<std::string_view> known,
                 std::string_view what) {
  if (!object.is_object()) fail<ValueError>(kWhere, what, " is no object: ", object.dump());
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    fail<ValueError>(kWhere, what, " has no '", name, "'; it has ",
                     join(std::vector<std::string>(known.begin(), known.end()), ", "));
  }
}

double number(const Json& object, const char* name, double otherwise, double unit) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return otherwise;
  if (!found->is_number() || found->get<double>() < 0) {
    fail<ValueError>(kWhere, name, " is ", found->dump(), ", not a number of at least 0");
  }
  return found->get<double>() * unit;
}

/// Nothing per second would make everything take for ever: no plan would be the cheapest.
double rate(const Json& object, const char* name) {
  const double value = number(object, name, std::numeric_limits<double>::infinity(), kGiga);
  if (value == 0) fail<ValueError>(kWhere, name, " is 0; leave it out where it costs nothing");
  return value;
}

Link link_of(const Json& object) {
  return {number(object, "latency_us", 0, kMicro), number(object, "overhead_us", 0, kMicro),
          rate(object, "gigabytes_per_s")};
}

Json rate_json(double per_second) {
  if (per_second == std::numeric_limits<double>::infinity()) return nullptr;
  return per_second / kGiga;
}

void write_link(Json& object, const Link& link) {
  object["latency_us"] = link.latency * 1e6;
  object["overhead_us"] = link.overhead * 1e6;
  object["gigabytes_per_s"] = rate_json(link.bandwidth);
}

/// Where the ranks along an axis stand, from the first of them on.
std::vector<std::int64_t> offsets_along(const Mesh& mesh, std::size_t axis) {
  Coordinate at(mesh.axes(), 0);
  const std::int64_t first = mesh.rank_at(at);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < mesh.size(axis); ++i) {
    at[axis] = i;
    out.push_back(mesh.rank_at(at) - first);
  }
  return out;
}

/// Whether all groups along `axes` are inside blocks of `ranks` ranks.
bool inside(const Mesh& mesh, std::span<const std::int8_t> axes, std::int64_t ranks) {
  if (ranks == 0) return true;
  if (mesh.has_table()) {
    for (std::int64_t i = 0; i < mesh.size(); ++i) {
      const Coordinate at = coordinate_at(mesh, i);
      const Coordinate first = coordinate_along(mesh, axes, 0, at);
      if (mesh.rank_at(at) / ranks != mesh.rank_at(first) / ranks) return false;
    }
    return true;
  }
  // Offsets along axes add up, so it matters only where in a block groups begin: few places, also
  // of very many ranks.
  std::int64_t low = 0;
  std::int64_t high = 0;
  std::set<std::int64_t> begins{mesh.rank_at(Coordinate(mesh.axes(), 0)) % ranks};
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const std::vector<std::int64_t> offsets = offsets_along(mesh, a);
    if (std::find(axes.begin(), axes.end(), static_cast<std::int8_t>(a)) != axes.end()) {
      low += *std::min_element(offsets.begin(), offsets.end());
      high += *std::max_element(offsets.begin(), offsets.end());
      continue;
    }
    std::set<std::int64_t> next;
    for (const std::int64_t begin : begins) {
      for (const std::int64_t o : offsets) next.insert(((begin + o) % ranks + ranks) % ranks);
    }
    begins = std::move(next);
  }
  return *begins.begin() + low >= 0 && *begins.rbegin() + high < ranks;
}

}  // namespace

Topology Topology::standard() {
  constexpr double kBandwidth = 1e9;
  Topology out;
  out.levels = {{"all", 0, {1024 / kBandwidth, 8192 / kBandwidth, kBandwidth}}};
  out.copy_bandwidth = 8 * kBandwidth;
  out.flops = 100 * kBandwidth;
  return out;
}

const Link& Topology::link(const Mesh& mesh, std::span<const std::int8_t> group) const {
  for (const Fused& f : axes) {
    if (f.axes.size() != group.size()) continue;
    const bool same = std::all_of(group.begin(), group.end(), [&](std::int8_t a) {
      return std::find(f.axes.begin(), f.axes.end(), mesh.name(static_cast<std::size_t>(a))) !=
             f.axes.end();
    });
    if (same) return f.link;
  }
  for (const Level& level : levels) {
    if (inside(mesh, group, level.ranks)) return level.link;
  }
  return levels.back().link;
}

Topology Topology::parse(std::string_view text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    fail<ValueError>(kWhere, "not JSON: ", error.what());
  }
  check_names(json, {"copy_gigabytes_per_s", "gigaflops", "levels", "axes", "relative", "compute"},
              "a topology");  // what is in `compute`, StepCosts reads
  Topology out;
  out.copy_bandwidth = rate(json, "copy_gigabytes_per_s");
  out.flops = rate(json, "gigaflops");
  if (!json.contains("levels") || !json["levels"].is_array() || json["levels"].empty()) {
    fail<ValueError>(kWhere, "there are no levels; give at least one");
  }
  out.levels.clear();
  for (const Json& level : json["levels"]) {
    check_names(level, {"name", "ranks", "latency_us", "overhead_us", "gigabytes_per_s"},
                "a level");
    const Json name = level.value("name", Json(""));
    const double ranks = number(level, "ranks", 0, 1);
    if (!name.is_string()) fail<ValueError>(kWhere, "a level's name is ", name.dump(), ", no text");
    if (ranks != std::floor(ranks) || ranks > 1e15)
      fail<ValueError>(kWhere, "a level joins ", ranks, " ranks");
    out.levels.push_back(
        {name.get<std::string>(), static_cast<std::int64_t>(ranks), link_of(level)});
  }
  for (std::size_t i = 0; i + 1 < out.levels.size(); ++i) {
    const std::int64_t next = out.levels[i + 1].ranks;
    if (out.levels[i].ranks > 0 && (next == 0 || next > out.levels[i].ranks)) continue;
    fail<ValueError>(kWhere, "level ", i, " joins ", out.levels[i].ranks, " ranks and level ",
                     i + 1, " ", next, "; each must join more than the one before, the last all");
  }
  for (const Json& fused : json.value("axes", Json::array())) {
    check_names(fused, {"axes", "latency_us", "overhead_us", "gigabytes_per_s"},
                "an entry of axes");
    const Json names = fused.value("axes", Json::array());
    const bool named =
        names.is_array() && !names.empty() &&
        std::all_of(names.begin(), names.end(), [](const Json& n) { return n.is_string(); });
    if (!named) fail<ValueError>(kWhere, "an entry of axes names no axes: ", fused.dump());
    out.axes.push_back({names.get<std::vector<std::string>>(), link_of(fused)});
  }
  const Json relative = json.value("relative", Json::object());
  check_names(relative, {"all_gather", "all_reduce", "attention"}, "relative");
  out.all_gather = number(relative, "all_gather", 1, 1);
  out.all_reduce = number(relative, "all_reduce", 1, 1);
  out.attention = number(relative, "attention", out.attention, 1);
  return out;
}

Topology Topology::load(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail<ValueError>(kWhere, "cannot read ", path);
  std::ostringstream text;
  text << in.rdbuf();
  return parse(text.str());
}

std::string Topology::to_json() const {
  Json json;
  json["copy_gigabytes_per_s"] = rate_json(copy_bandwidth);
  json["gigaflops"] = rate_json(flops);
  for (const Level& level : levels) {
    Json entry{{"name", level.name}, {"ranks", level.ranks}};
    write_link(entry, level.link);
    json["levels"].push_back(std::move(entry));
  }
  for (const Fused& f : axes) {
    Json entry{{"axes", f.axes}};
    write_link(entry, f.link);
    json["axes"].push_back(std::move(entry));
  }
  json["relative"] = {
      {"all_gather", all_gather}, {"all_reduce", all_reduce}, {"attention", attention}};
  return json.dump(2);
}

}  // namespace intarsia
