// Plan: how a tensor gets from one layout to another, as plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/layout.h"

namespace intarsia {

enum class StepKind : std::uint8_t {
  relabel,         ///< the axis has one rank: nothing moves, whatever the placements
  slice,           ///< R -> S: each rank keeps its part; nothing is sent
  make_partial,    ///< R -> P: each rank keeps a term; nothing is sent
  reduce_scatter,  ///< P -> S
  all_to_all,      ///< S -> S of another dimension
  all_gather,      ///< S -> R
  all_reduce,      ///< P -> R
};

std::string_view to_text(StepKind kind);

/// A change of the placement on one mesh axis.
///
/// A cut can be made or undone only where it is the last cut of its dimension: what cuts further
/// inside must be undone before.
struct Step {
  StepKind kind = StepKind::slice;
  std::size_t axis = 0;
  /// The layouts of the whole tensor, before and after.
  Layout before;
  Layout after;

  const Placement& from() const { return before.placement(axis); }
  const Placement& to() const { return after.placement(axis); }
  /// Whether anything is sent.
  bool communicates() const;
  /// `all_gather tp: S(0),S(1) -> S(0),R`.
  std::string to_string() const;
  friend bool operator==(const Step&, const Step&) = default;
};

/// Steps that lead from one layout to another. Every rank makes the same plan without a message: it
/// depends on the two layouts only.
struct Plan {
  Layout from;
  Layout to;
  std::vector<Step> steps;

  /// How many steps communicate.
  std::size_t collectives() const;
  /// The layouts, then one step per line.
  std::string to_string() const;
  friend bool operator==(const Plan&, const Plan&) = default;
};

/// A plan of single-axis steps, with what shrinks pieces first and what grows them last. It is
/// always right, not always the cheapest.
///
/// Nothing, when there is no exact way: between different kinds of partial values.
/// REQUIRES: both layouts are on the same mesh.
std::optional<Plan> make_plan(const Layout& from, const Layout& to);

}  // namespace intarsia
