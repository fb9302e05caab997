// Plan: how a tensor gets from one layout to another, as plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/topology.h"

namespace intarsia {

enum class StepKind : std::uint8_t {
  relabel,            ///< axes of size 1: nothing moves, whatever the placements
  slice,              ///< each rank keeps a part of what it holds; nothing is sent
  make_partial,       ///< R or S -> P: each rank keeps a partial value; nothing is sent
  all_gather,         ///< S -> R
  all_reduce,         ///< P -> R
  reduce_scatter,     ///< P -> S: each rank gets the partial values of its part, and reduces them
  exchange_partials,  ///< the same where several ranks hold a part; taken for few ranks or bytes
  all_to_all,         ///< every rank sends what others need: the intersections of old and new boxes
  permute,            ///< the same, where each rank needs what one other rank holds
};

std::string_view to_text(StepKind kind);

/// A change of the placements on some axes, by one collective or none.
struct Step {
  StepKind kind = StepKind::slice;
  /// The axes along which data is sent, in the mesh's order: the ranks that differ along them only
  /// are one group. Where nothing is sent: the axes whose placements change.
  AxisList axes;
  /// The layouts of the tensor, before and after.
  Layout before;
  Layout after;
  /// In how many parts, one after the other, the data is sent, to keep buffers small.
  std::int64_t chunks = 1;
  /// The time that it takes by the topology.
  double seconds = 0;

  /// Whether anything is sent.
  bool communicates() const;
  /// `dp` or `dp+tp`.
  std::string axes_text() const;
  /// `all_gather tp: S(0),S(1) -> S(0),R`.
  std::string to_string() const;
  friend bool operator==(const Step&, const Step&) = default;
};

/// Steps that lead from one layout to another. Every rank makes the same plan, without
/// communication.
struct Plan {
  Layout from;
  Layout to;
  Shape shape = {};               ///< of the full tensor
  std::int64_t element_size = 4;  ///< in bytes
  std::vector<Step> steps = {};
  /// The time that it takes by the topology.
  double seconds = 0;
  /// No rank holds more bytes than this at any time, its old and new piece and all buffers
  /// included.
  std::int64_t peak_bytes = 0;

  /// How many steps communicate.
  std::size_t collectives() const;
  /// The layouts, then one step per line.
  std::string to_string() const;
  friend bool operator==(const Plan&, const Plan&) = default;
};

struct PlanOptions {
  std::int64_t element_size = 4;
  /// What the plan is priced by; null: Topology::standard().
  const Topology* topology = nullptr;
  /// No rank may hold more than this at any time.
  std::optional<std::int64_t> peak_bytes = std::nullopt;
};

/// The cheapest plan by the topology.
///
/// What a step costs, for a group of n ranks with a link, and pieces of b bytes before and a after:
///
///   start + rounds * latency + received * relative / bandwidth + copied / copy bandwidth
///
///   all_gather      n - 1 rounds; received a - b; copied nothing where the outermost dimension was
///                   sharded, else a
///   all_reduce      2 (n - 1) rounds; received 2 b (n-1)/n; copied b
///   the exchanges   a round for each rank that something comes from; received what a rank
///                   lacks of its new piece, or of all its partial values where they are reduced;
///                   copied twice that, or three times all partial values of the new piece
///   local steps     copied a
///
/// Pieces count by their share of the tensor, as if all pieces were even, and the rank that keeps
/// least of what it held counts for all: so every rank computes the same price, without looking at
/// the others. Where the old and the new chunks of a dimension do not nest (halves and thirds), a
/// rank counts as keeping nothing, and as receiving from all ranks along the axes that sharded the
/// dimension.
///
/// On the way, a dimension is split in no more chunks than it has elements, and only axes that are
/// partial before or after are partial. Partial values are made of what a rank holds, which may be
/// a part of the tensor. Of plans that cost the same, the one with fewer steps is taken, then the
/// first in the order of mesh axes. Meshes of up to three axes and 64 ranks are searched
/// thoroughly. On larger ones the plan may not be the cheapest; it is never wrong.
///
/// nullopt, when there is no exact way: between different kinds of partial values, and from values
/// to partial values of a norm, since a norm has no sign.
/// ValueError, when no plan fits into `peak_bytes`; the message says how much the least one needs.
/// REQUIRES: both layouts are on the same mesh.
std::optional<Plan> make_plan(const Layout& from, const Layout& to,
                              std::span<const std::int64_t> shape, const PlanOptions& options = {});

/// Plans by one topology, kept: asking again costs a lookup. Holds 4,096 plans at most.
/// THREADS: any.
class PlanCache {
 public:
  explicit PlanCache(Topology topology = Topology::standard());
  ~PlanCache();
  PlanCache(const PlanCache&) = delete;
  PlanCache& operator=(const PlanCache&) = delete;

  const Topology& topology() const { return topology_; }
  /// As make_plan; null, when there is no way.
  std::shared_ptr<const Plan> plan(const Layout& from, const Layout& to,
                                   std::span<const std::int64_t> shape, std::int64_t element_size,
                                   std::optional<std::int64_t> peak_bytes = std::nullopt);

 private:
  struct Slots;
  Topology topology_;
  std::unique_ptr<Slots> slots_;
};

/// What a plan moves, counted exactly from boxes.
struct Traffic {
  /// Bytes that arrive at the rank which receives most, and at all ranks together.
  std::int64_t received = 0;
  std::int64_t received_by_all = 0;
  /// Bytes of its new piece that a rank did not hold: of the rank that lacks most, and of all ranks
  /// together. No way from one layout to the other can receive less, except where partial values
  /// are reduced or made.
  std::int64_t missing = 0;
  std::int64_t missing_by_all = 0;
};

/// The traffic of a step, and of a plan. Looks at every rank, but at 4,096 of them at most:
/// `received_by_all` and `missing_by_all` then count these.
Traffic traffic(const Step& step, std::span<const std::int64_t> shape, std::int64_t element_size);
Traffic traffic(const Plan& plan);

/// The most bytes that a rank holds of a tensor.
std::int64_t piece_bytes(const Layout& layout, std::span<const std::int64_t> shape,
                         std::int64_t element_size);

}  // namespace intarsia
