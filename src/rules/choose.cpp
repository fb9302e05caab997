#include "rules/choose.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <tuple>

namespace intarsia {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// What starting a collective along an axis costs, as bytes that could be sent in the same time.
/// Axes are chosen for one by one, so that their links need not be compared.
double start_cost(const Topology* topology, const Mesh& mesh, std::size_t axis) {
  static const Topology kStandard = Topology::standard();
  constexpr double kMost = 1e15;  // links without a bandwidth: only starts count
  const std::array<std::int8_t, 1> along{static_cast<std::int8_t>(axis)};
  const Link& link = (topology != nullptr ? *topology : kStandard).link(mesh, along);
  return link.overhead == 0 ? 0 : std::min(kMost, link.overhead * link.bandwidth);
}

/// How a price is asked for.
struct Pricing {
  double n = 1;      // ranks along the axis
  double start = 0;  // of a collective, in bytes
  bool later = false;
};

/// Bytes that a rank sends for one operand along one axis. `bytes`: of the piece that a rank would
/// hold if this axis did not shard it.
double cost(const Placement& from, const Placement& to, double bytes, const Pricing& p) {
  const double n = p.n;
  if (from == to || n == 1) return 0;
  const double part = bytes * (n - 1) / n;
  if (from.is_replicate()) {
    // Partial values made now have to be reduced later.
    if (!to.is_partial()) return 0;
    if (to.reduction() == Reduction::norm) return kNever;
    return p.later ? part : 2 * part + p.start;
  }
  if (from.is_partial()) {
    if (to.is_partial()) return kNever;
    return p.start + (to.is_replicate() ? 2 * part : part);
  }
  if (to.is_replicate()) return p.start + part;
  if (to.is_partial()) return kNever;
  return p.start + (from.dim() == to.dim() ? part : part / n);
}

/// The order in which axes shard a dimension, the same for all operands: that of the mesh, changed
/// as the first operand with an order of its own asks.
AxisList common_order(const Mesh& mesh, std::span<const Candidate> operands,
                      std::optional<std::size_t> keep) {
  AxisList order;
  for (std::size_t a = 0; a < mesh.axes(); ++a) order.push_back(static_cast<std::int8_t>(a));
  const Layout* leader = keep ? &operands[*keep].layout : nullptr;
  for (const Candidate& c : operands) {
    if (leader == nullptr && c.given && !c.layout.has_default_order()) leader = &c.layout;
  }
  if (leader == nullptr) return order;
  for (std::size_t d = 0; d < leader->least_dims(); ++d) {
    const AxisList axes = leader->axes_of(static_cast<int>(d));
    AxisList places = axes;
    std::sort(places.begin(), places.end());
    for (std::size_t i = 0; i < axes.size(); ++i) {
      order[static_cast<std::size_t>(places[i])] = axes[i];
    }
  }
  return order;
}

/// A layout whose dimensions are sharded in the common order.
Layout layout_in_order(const Mesh& mesh, std::span<const Placement> placements,
                       const AxisList& order) {
  LayoutOptions options;
  for (std::size_t a = 0; a < placements.size(); ++a) {
    if (!placements[a].is_shard()) continue;
    const int dim = placements[a].dim();
    const bool listed = std::any_of(options.order.begin(), options.order.end(),
                                    [&](const auto& entry) { return entry.first == dim; });
    if (listed) continue;
    std::vector<std::string> names;
    for (const std::int8_t axis : order) {
      if (placements[static_cast<std::size_t>(axis)].is_shard(dim))
        names.push_back(mesh.name(static_cast<std::size_t>(axis)));
    }
    if (names.size() > 1) options.order.emplace_back(dim, std::move(names));
  }
  return Layout(mesh, placements, options);
}

/// The rows for one axis: as given, with the kinds of partial and the blocks that operands have.
std::vector<Row> rows_for(const std::vector<Row>& rows, std::span<const Candidate> operands,
                          std::size_t axis) {
  std::vector<Row> out;
  Row replicated;
  replicated.in.resize(operands.size());
  out.push_back(std::move(replicated));
  const auto add_variants = [&](const Row& row, auto matches, auto change) {
    std::vector<Placement> seen;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const Placement& have = operands[i].layout.placement(axis);
      if (!operands[i].given || !matches(row.in[i], have)) continue;
      if (std::find(seen.begin(), seen.end(), have) != seen.end()) continue;
      seen.push_back(have);
      Row variant = row;
      for (Placement& p : variant.in) change(p, have);
      for (Placement& p : variant.out) change(p, have);
      out.push_back(std::move(variant));
    }
  };
  for (const Row& row : rows) {
    if (row.linear) {
      add_variants(
          row,
          [&](const Placement& wants, const Placement& have) {
            return wants.is_partial() && have.is_partial() &&
                   (row.any_kind || have.reduction() == Reduction::sum ||
                    have.reduction() == Reduction::avg);
          },
          [](Placement& p, const Placement& have) {
            if (p.is_partial()) p = have;
          });
      continue;
    }
    out.push_back(row);
    if (row.contiguous) continue;
    add_variants(
        row,
        [](const Placement& wants, const Placement& have) {
          return wants.is_shard() && have.is_strided() && wants.dim() == have.dim();
        },
        [](Placement& p, const Placement& have) {
          if (p.is_shard()) p = Placement::strided_shard(p.dim(), have.split());
        });
  }
  return out;
}

using Price = std::tuple<double, std::size_t, std::size_t>;

Price price(const Row& row, std::span<const Candidate> operands, std::size_t axis,
            const std::vector<double>& bytes, const Pricing& pricing) {
  const double n = pricing.n;
  double sum = 0;
  std::size_t moved = 0;
  // An op runs sharded where one of its operands already is. To shard replicated operands for it
  // would only put off a gather: that is left to whoever lays tensors out.
  bool anchored = false;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    anchored |=
        operands[i].given && row.in[i].is_shard() && operands[i].layout.placement(axis).is_shard();
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].given) continue;
    const Placement& have = operands[i].layout.placement(axis);
    // Partial values pass through a linear op for free, or not at all: gathering its other operands
    // to keep them partial would cost now, and their reduction later.
    if (row.linear && have.is_shard() && row.in[i].is_replicate() && n > 1) return {kNever, 0, 0};
    double move = cost(have, row.in[i], bytes[i], pricing);
    if (operands[i].also && move != kNever) {
      move = std::min(move, cost(operands[i].also->placement(axis), row.in[i], bytes[i], pricing));
    }
    sum += move;
    if (!anchored && !have.is_shard() && row.in[i].is_shard()) sum += bytes[i] * (n - 1) / n;
    moved += have != row.in[i] ? 1 : 0;
  }
  // Tensors stay where they are, so nothing has to be moved back later: no start is charged.
  if (row.formula) sum += 2 * *row.formula * bytes[0] * (n - 1) / n;
  if (n > 1) sum += std::min(row.sends, 1 / n) * bytes[0];
  const auto partial = std::count_if(row.out.begin(), row.out.end(),
                                     [](const Placement& p) { return p.is_partial(); });
  // Along an axis of one rank nothing matters but to leave tensors alone.
  return {sum, n == 1 ? 0 : static_cast<std::size_t>(partial), moved};
}

/// Whether a tensor would be partial in two ways that do not commute, here and on an axis before.
bool mixes(const std::vector<Placement>& before, const Placement& next) {
  return next.is_partial() && std::any_of(before.begin(), before.end(), [&](const Placement& p) {
           return p.is_partial() && !commute(p, next);
         });
}

}  // namespace

std::optional<Choice> choose(const Mesh& mesh, std::span<const Candidate> operands,
                             const std::vector<Row>& rows, std::size_t results,
                             const ChooseOptions& options) {
  const std::optional<std::size_t> keep = options.keep;
  const std::size_t axes = mesh.axes();
  Choice choice;
  std::vector<std::vector<Placement>> in(operands.size());
  std::vector<std::vector<Placement>> out(results);
  // The bytes of each operand's piece.
  std::vector<double> bytes;
  for (const Candidate& c : operands) {
    double b = c.bytes;
    for (std::size_t a = 0; a < axes; ++a) {
      if (c.layout.placement(a).is_shard()) b /= static_cast<double>(mesh.size(a));
    }
    bytes.push_back(b);
  }
  // The inputs of rows that count parts, as chosen for axes before, and the size of the axis: into
  // so many parts they are sharded.
  std::vector<std::pair<std::vector<Placement>, std::int64_t>> sharded;
  const auto parts_for = [&](const Row& row) -> std::int64_t {
    std::int64_t parts = 1;
    for (const auto& [in, size] : sharded) parts *= in == row.in ? size : 1;
    return parts;
  };
  for (std::size_t a = 0; a < axes; ++a) {
    const auto n = static_cast<double>(mesh.size(a));
    const Pricing pricing{n, n == 1 ? 0 : start_cost(options.topology, mesh, a), options.later};
    std::vector<double> unsharded = bytes;  // if this axis did not shard it
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].layout.placement(a).is_shard()) unsharded[i] *= n;
    }
    std::optional<Row> best;
    Price best_price;
    for (Row& row : rows_for(rows, operands, a)) {
      row.out.resize(results);
      if (keep) {
        const Placement& stays = operands[*keep].layout.placement(a);
        if (row.in[*keep] != stays || row.out.empty() || row.out[0] != stays) continue;
      }
      if (options.reduced && !row.out.empty() && row.out[0].is_partial()) continue;
      bool mixed = false;
      for (std::size_t i = 0; i < operands.size(); ++i) mixed |= mixes(in[i], row.in[i]);
      for (std::size_t i = 0; i < results; ++i) mixed |= mixes(out[i], row.out[i]);
      if (mixed) continue;
      if (row.parts != 0 && row.parts % (parts_for(row) * mesh.size(a)) != 0) continue;
      const Price p = price(row, operands, a, unsharded, pricing);
      if (std::get<0>(p) == kNever) continue;
      if (!best || p < best_price) {
        best = std::move(row);
        best_price = p;
      }
    }
    if (!best) return std::nullopt;
    choice.by_formula |= best->formula.has_value();
    if (best->parts != 0) sharded.emplace_back(best->in, mesh.size(a));
    for (std::size_t i = 0; i < operands.size(); ++i) in[i].push_back(best->in[i]);
    for (std::size_t i = 0; i < results; ++i) out[i].push_back(best->out[i]);
  }
  const AxisList order = common_order(mesh, operands, keep);
  for (const auto& p : in) choice.in.push_back(layout_in_order(mesh, p, order));
  for (const auto& p : out) choice.out.push_back(layout_in_order(mesh, p, order));
  return choice;
}

}  // namespace intarsia
