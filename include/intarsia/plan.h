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
  relabel,         ///< axes of one rank: nothing moves, whatever the placements
  slice,           ///< each rank keeps a part of what it holds; nothing is sent
  make_partial,    ///< R or S -> P: each rank keeps a term; nothing is sent
  all_gather,      ///< S -> R
  all_reduce,      ///< P -> R
  reduce_scatter,  ///< P -> S: terms go to the ranks that hold the result, which reduce them
  exchange_terms,  ///< the same where several ranks hold the result: for few, or little
  all_to_all,      ///< every rank sends what others need: the intersections of old and new boxes
  permute,         ///< the same, where each rank needs what one other rank holds
};

std::string_view to_text(StepKind kind);

/// A change of the placements on some axes, by one collective or none.
struct Step {
  StepKind kind = StepKind::slice;
  /// The axes along which data is sent, in the mesh's order: the ranks that differ along them only
  /// are one group. Where nothing is sent: the axes whose placements change.
  AxisList axes;
  /// The layouts of the whole tensor, before and after.
  Layout before;
  Layout after;
  /// In how many parts, one after the other, the data is sent, to keep buffers small.
  std::int64_t chunks = 1;
  /// What the topology says it takes.
  double seconds = 0;

  /// Whether anything is sent.
  bool communicates() const;
  /// `dp` or `dp+tp`.
  std::string axes_text() const;
  /// `all_gather tp: S(0),S(1) -> S(0),R`.
  std::string to_string() const;
  friend bool operator==(const Step&, const Step&) = default;
};

/// Steps that lead from one layout to another. Every rank makes the same plan without a message.
struct Plan {
  Layout from;
  Layout to;
  Shape shape = {};               ///< of the whole tensor
  std::int64_t element_size = 4;  ///< in bytes
  std::vector<Step> steps = {};
  /// What the topology says it takes.
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
  /// By what the plan is priced; null: Topology::standard().
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
///                   cut, else a
///   all_reduce      2 (n - 1) rounds; received 2 b (n-1)/n; copied b
///   the exchanges   a round for each rank that something comes from; received what of its new
///                   piece a rank did not hold (of each term, where terms are reduced); copied
///                   twice that, or with terms three times all terms of the new piece
///   local steps     copied a
///
/// Pieces count by their share of the tensor, as if every cut were even, and the rank that keeps
/// least of what it held counts for all: so the price depends on no rank, and on no number of
/// ranks. Where an old and a new cut of a dimension do not nest (halves and thirds), a rank counts
/// as keeping nothing, and all ranks along the old cut as those that something comes from.
///
/// On the way, a dimension is cut into no more parts than it has elements, and terms stand only
/// along axes that have them before or after; terms are made of what a rank holds, also of a part.
/// Ties go to fewer steps, then to the order of mesh axes. Meshes of up to three axes and 64 ranks
/// are searched thoroughly; on larger ones a dearer plan may be found, never a wrong one.
///
/// Nothing, when there is no exact way: between different kinds of partial values, and from values
/// to terms of a norm, which has no sign.
/// ValueError, when no plan fits into `peak_bytes`; the message says what the least is.
/// REQUIRES: both layouts are on the same mesh.
std::optional<Plan> make_plan(const Layout& from, const Layout& to,
                              std::span<const std::int64_t> shape, const PlanOptions& options = {});

/// Plans by one topology, remembered: asking again costs a lookup. Holds 4,096 plans at most.
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
  /// What of its new piece the rank does not hold that misses most, and all ranks together: what no
  /// way from one layout to the other can do without. Where terms are reduced or made it is no
  /// bound.
  std::int64_t missing = 0;
  std::int64_t missing_by_all = 0;
};

/// Of one step, and of a plan. Looks at every rank, or at 4,096 of them at most, and then
/// `received_by_all` and `missing_by_all` are of those.
Traffic traffic(const Step& step, std::span<const std::int64_t> shape, std::int64_t element_size);
Traffic traffic(const Plan& plan);

/// The most bytes that a rank holds of a tensor.
std::int64_t piece_bytes(const Layout& layout, std::span<const std::int64_t> shape,
                         std::int64_t element_size);

}  // namespace intarsia
