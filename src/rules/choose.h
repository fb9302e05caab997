// From one-axis rows to layouts on N axes: written once, for all ops.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/rule.h"
#include "intarsia/topology.h"

namespace intarsia {

/// An operand as the choice sees it.
struct Candidate {
  Layout layout;
  double bytes = 0;
  /// Another layout in which its pieces are at hand, because an op already needed them so.
  std::optional<Layout> also = std::nullopt;
  /// False for operands that were not passed.
  bool given = true;
};

/// The layouts in which an op runs.
struct Choice {
  std::vector<Layout> in;
  std::vector<Layout> out;
  bool by_formula = false;  ///< on some axis
};

/// Picks, axis by axis, the row to which the operands move with the fewest bytes. Ties go to rows
/// that leave fewer results partial, then to those that move fewer operands, then to the first:
/// every rank picks the same. Running the op replicated is always one of the choices.
///
/// `keep`: an operand that must stay as it is, with result 0 laid out alike: what an op in place
/// needs. The answer is empty when no row does that.
/// `later`: the sum of a partial and a replicated tensor is left partial, to be reduced later with
/// what is added to it. Saves reductions where sums build up, as in backward; elsewhere both the
/// partial values and what they reduce to would be kept in memory.
/// `reduced`: result 0 is not left partial, so that it can be moved to any layout.
///
/// REQUIRES: all candidates are on `mesh`; every row has `operands.size()` inputs.
struct ChooseOptions {
  std::optional<std::size_t> keep = std::nullopt;
  bool later = false;
  bool reduced = false;
  /// What starting a collective costs, beside what its bytes do. Null: Topology::standard().
  const Topology* topology = nullptr;
};
std::optional<Choice> choose(const Mesh& mesh, std::span<const Candidate> operands,
                             const std::vector<Row>& rows, std::size_t results,
                             const ChooseOptions& options = {});

}  // namespace intarsia
