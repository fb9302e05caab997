#include <algorithm>
#include <limits>
#include <vector>

#include "base/text.h"
#include "intarsia/between.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "layout/coordinates.h"
#include "plan/shared.h"

namespace intarsia {
namespace {

constexpr std::int64_t kMostRanks = 1024;

void check(std::string_view where, const Layout& from, const Layout& to,
           std::span<const std::int64_t> shape) {
  check_shape(where, shape);
  check_dims(where, from, shape.size());
  check_dims(where, to, shape.size());
  for (const Layout* layout : {&from, &to}) {
    if (layout->has_partial()) {
      fail<ValueError>(where, *layout, " has partial values; reduce them first");
    }
  }
}

/// For each row the column that makes the sum of costs the least: the Hungarian method, with
/// potentials, in the order of rows.
std::vector<std::size_t> assign(const std::vector<std::vector<std::int64_t>>& cost) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 4;
  const std::size_t n = cost.size();
  // Index 0 stands for "none"; rows and columns count from 1.
  std::vector<std::int64_t> row_potential(n + 1, 0);
  std::vector<std::int64_t> column_potential(n + 1, 0);
  std::vector<std::size_t> row_of(n + 1, 0);
  for (std::size_t row = 1; row <= n; ++row) {
    std::vector<std::int64_t> slack(n + 1, kMost);
    std::vector<std::size_t> before(n + 1, 0);
    std::vector<bool> used(n + 1, false);
    std::size_t column = 0;
    row_of[0] = row;
    do {
      used[column] = true;
      const std::size_t r = row_of[column];
      std::int64_t least = kMost;
      std::size_t next = 0;
      for (std::size_t c = 1; c <= n; ++c) {
        if (used[c]) continue;
        const std::int64_t reduced = cost[r - 1][c - 1] - row_potential[r] - column_potential[c];
        if (reduced < slack[c]) {
          slack[c] = reduced;
          before[c] = column;
        }
        if (slack[c] < least) {
          least = slack[c];
          next = c;
        }
      }
      for (std::size_t c = 0; c <= n; ++c) {
        if (used[c]) {
          row_potential[row_of[c]] += least;
          column_potential[c] -= least;
        } else {
          slack[c] -= least;
        }
      }
      column = next;
    } while (row_of[column] != 0);
    while (column != 0) {
      row_of[column] = row_of[before[column]];
      column = before[column];
    }
  }
  std::vector<std::size_t> out(n);
  for (std::size_t c = 1; c <= n; ++c) out[row_of[c] - 1] = c - 1;
  return out;
}

}  // namespace

Coordinate serving_replica(const Layout& from, const Mesh& to, std::int64_t place) {
  const Mesh& mesh = from.mesh();
  if (const auto own = mesh.coordinate_of(to.rank_at(coordinate_at(to, place)))) return *own;
  Coordinate out(mesh.axes(), 0);
  for (std::size_t a = mesh.axes(); a-- > 0;) {
    if (from.placement(a).is_shard()) continue;
    out[a] = place % mesh.size(a);  // others by turns
    place /= mesh.size(a);
  }
  return out;
}

Traffic traffic_between(const Layout& from, const Layout& to, std::span<const std::int64_t> shape,
                        std::int64_t element_size) {
  check("traffic_between", from, to, shape);
  Traffic out;
  for (std::int64_t place = 0; place < to.mesh().size(); ++place) {
    const Coordinate at = coordinate_at(to.mesh(), place);
    const Boxes wanted = boxes(to, shape, at);
    const auto held = from.mesh().coordinate_of(to.mesh().rank_at(at));
    const std::int64_t kept = held ? shared_elements(boxes(from, shape, *held), wanted) : 0;
    const std::int64_t missing = (wanted.numel() - kept) * element_size;
    out.missing = std::max(out.missing, missing);
    out.missing_by_all += missing;
  }
  out.received = out.missing;
  out.received_by_all = out.missing_by_all;
  return out;
}

Mesh relabelled(const Layout& from, const Layout& to, std::span<const std::int64_t> shape) {
  constexpr std::string_view where = "relabelled";
  check(where, from, to, shape);
  const Mesh& mesh = to.mesh();
  if (mesh.size() > kMostRanks) {
    fail<ValueError>(where, mesh, " has ", mesh.size(), " ranks; at most ", kMostRanks,
                     " can be put in order");
  }
  const auto n = static_cast<std::size_t>(mesh.size());
  std::vector<std::int64_t> ranks;
  std::vector<std::vector<std::int64_t>> missing(n);
  for (std::size_t i = 0; i < n; ++i) {
    ranks.push_back(mesh.rank_at(coordinate_at(mesh, static_cast<std::int64_t>(i))));
  }
  for (std::size_t i = 0; i < n; ++i) {
    const Boxes wanted = boxes(to, shape, coordinate_at(mesh, static_cast<std::int64_t>(i)));
    for (std::size_t j = 0; j < n; ++j) {
      const auto held = from.mesh().coordinate_of(ranks[j]);
      const std::int64_t kept = held ? shared_elements(boxes(from, shape, *held), wanted) : 0;
      // Of equal costs a rank stays where it is.
      missing[i].push_back(2 * (wanted.numel() - kept) + (i == j ? 0 : 1));
    }
  }
  const std::vector<std::size_t> taken = assign(missing);
  std::vector<std::int64_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = ranks[taken[i]];
  std::vector<Axis> axes;
  for (std::size_t a = 0; a < mesh.axes(); ++a) axes.push_back({mesh.name(a), mesh.size(a)});
  return Mesh::of_ranks(axes, order);
}

}  // namespace intarsia
