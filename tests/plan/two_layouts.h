// Two layouts, and all that a search between them asks: roles, sets of axes, prices.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/price.h"

namespace intarsia::testing {

/// Prices for mental arithmetic: a collective starts in 100 s, a message takes 10 s, a byte 1 s,
/// and copying it a quarter of that.
inline Topology slow_topology() {
  Topology out;
  out.levels = {{"all", 0, {10, 100, 1}}};
  out.copy_bandwidth = 4;
  return out;
}

/// A tensor of bytes, and two of its layouts.
struct TwoLayouts {
  TwoLayouts(const char* on, std::vector<std::int64_t> sizes, const char* x, const char* y,
             std::optional<std::int64_t> peak_bytes = std::nullopt, Topology with = slow_topology())
      : topology(std::move(with)),
        mesh(Mesh::parse(on)),
        shape(std::move(sizes)),
        from(Layout::parse(x, mesh)),
        to(Layout::parse(y, mesh)),
        options{1, &topology, peak_bytes},
        roles(from, to, shape),
        sets(mesh, shape, options),
        prices(roles, sets, from, to, shape, options) {}
  TwoLayouts(const TwoLayouts&) = delete;
  TwoLayouts& operator=(const TwoLayouts&) = delete;

  /// The state of a layout: one of the two, or any that is not irregular.
  State state(std::string_view text) {
    const Layout layout = Layout::parse(text, mesh);
    const Roles played = layout == from ? roles.begin()
                         : layout == to ? roles.goal()
                                        : roles_of(layout);
    State out;
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      roles.play(out, a, roles.number(a, played[a]));
    }
    return out;
  }
  /// The states of two layouts. Which roles are in conflict is known once all have numbers.
  std::array<State, 2> states(std::string_view x, std::string_view y) {
    (void)state(x);
    (void)state(y);
    return {state(x), state(y)};
  }
  /// `S(0),R > R,R`.
  std::string text(const std::vector<State>& way) const {
    std::string out;
    for (const State& s : way) {
      out += (out.empty() ? "" : " > ") + roles.layout(s).placements_text();
    }
    return out;
  }

  Topology topology;
  Mesh mesh;
  std::vector<std::int64_t> shape;
  Layout from;
  Layout to;
  PlanOptions options;
  RoleTable roles;
  AxisSets sets;
  Prices prices;
};

}  // namespace intarsia::testing
