#include "draw/panel.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "layout/coordinates.h"
#include "plan/report.h"

namespace intarsia::draw {
namespace {

constexpr std::size_t kMostBorders = 128;  // lines along one dimension

std::vector<Cell> cells_of(const Boxes& held, const Face& face) {
  if (held.numel() == 0) return {};
  if (face.slice) {
    const auto runs = held.runs(2);
    if (std::ranges::find(runs, *face.slice) == runs.end()) return {};
  }
  const std::array<Range, 1> all{Range{0, 1}};
  const auto runs = [&](std::optional<std::size_t> dim) {
    return dim ? held.runs(*dim) : std::span<const Range>(all);
  };
  std::vector<Cell> out;
  for (const Range& row : runs(face.down)) {
    for (const Range& column : runs(face.right)) {
      out.push_back({row.begin, row.end, column.begin, column.end});
    }
  }
  return out;
}

/// Which of the partial values the rank at `at` holds.
std::int64_t partial_of(const Layout& layout, const Coordinate& at) {
  std::int64_t which = 0;
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (layout.placement(a).is_partial()) which = which * layout.mesh().size(a) + at[a];
  }
  return which;
}

/// Where pieces begin along a dimension; empty, where there are too many places.
std::set<std::int64_t> borders_along(const Layout& layout, const Shape& shape,
                                     std::optional<std::size_t> dim) {
  std::set<std::int64_t> out;
  if (!dim) return out;
  const AxisList axes = layout.axes_of(static_cast<int>(*dim));
  std::int64_t ranks = 1;
  for (const std::int8_t a : axes) ranks *= layout.mesh().size(static_cast<std::size_t>(a));
  for (std::int64_t i = 0; i < ranks; ++i) {
    const Coordinate first(layout.mesh().axes(), 0);
    const Boxes held = boxes(layout, shape, coordinate_along(layout.mesh(), axes, i, first));
    for (const Range& run : held.runs(*dim)) out.insert(run.begin);
    if (out.size() > kMostBorders) return {};
  }
  return out;
}

/// `P(sum) along dp+tp: 8 partial values`; axes of one kind together.
void note_partials(Panel& panel) {
  const Mesh& mesh = panel.layout.mesh();
  std::vector<Placement> seen;
  for (const Placement& kind : panel.layout.placements()) {
    if (!kind.is_partial() || std::ranges::find(seen, kind) != seen.end()) continue;
    seen.push_back(kind);
    std::vector<std::string> names;
    std::size_t partials = 1;
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      if (panel.layout.placement(a) != kind) continue;
      names.push_back(mesh.name(a));
      partials *= static_cast<std::size_t>(mesh.size(a));
    }
    panel.partials *= partials;
    panel.notes.push_back(
        concat(kind, " along ", join(names, "+"), ": ", count_text(partials, "partial value")));
  }
}

void note_other_dims(Panel& panel, const Shape& shape, const Face& face) {
  std::vector<std::string> names;
  bool sharded = false;
  for (std::size_t d = face.slice ? 3 : 2; d < shape.size(); ++d) {
    names.push_back(dim_text(panel.layout, shape, d));
    sharded = sharded || !panel.layout.axes_of(static_cast<int>(d)).empty();
  }
  if (names.empty()) return;
  panel.notes.push_back(join(names, ", "));
  if (sharded) {
    panel.notes.emplace_back("where an axis shards these, ranks in one cell hold parts of them");
  }
}

void show_each_rank(Panel& panel, const Shape& shape, const Face& face) {
  const Mesh& mesh = panel.layout.mesh();
  std::vector<std::int64_t> idle;
  for (std::int64_t i = 0; i < mesh.size(); ++i) {
    const Coordinate at = coordinate_at(mesh, i);
    const Boxes held = boxes(panel.layout, shape, at);
    const auto cells = cells_of(held, face);
    if (held.numel() == 0) idle.push_back(mesh.rank_at(at));
    for (const Cell& cell : cells) {
      const auto [found, is_new] = panel.cells.try_emplace(cell);
      if (is_new) found->second.first = i;
      found->second.by_partial[partial_of(panel.layout, at)].push_back(mesh.rank_at(at));
    }
    if (i == 0) panel.of_first_rank = cells;
  }
  if (idle.empty()) return;
  const bool one = idle.size() == 1;
  panel.notes.push_back(concat(one ? "rank " : "ranks ", join(rank_words(idle), ""),
                               one ? " holds" : " hold", " nothing"));
}

void show_first_rank(Panel& panel, const Shape& shape, const Face& face) {
  const Mesh& mesh = panel.layout.mesh();
  panel.row_borders = borders_along(panel.layout, shape, face.down);
  panel.column_borders = borders_along(panel.layout, shape, face.right);
  panel.of_first_rank = cells_of(boxes(panel.layout, shape, coordinate_at(mesh, 0)), face);
  const auto left_out = [&](const std::set<std::int64_t>& borders, std::optional<std::size_t> dim) {
    return dim && shape[*dim] > 0 && borders.empty();
  };
  if (left_out(panel.row_borders, face.down) || left_out(panel.column_borders, face.right)) {
    panel.notes.emplace_back("too many pieces to be drawn");
  }
  std::int64_t pieces = 1;
  for (const std::int8_t a : panel.layout.sharding_axes()) {
    pieces *= mesh.size(static_cast<std::size_t>(a));
  }
  const auto each = static_cast<std::size_t>(mesh.size() / pieces);
  panel.notes.push_back(concat(count_text(static_cast<std::size_t>(pieces), "piece"), ", ",
                               pieces == 1 ? "" : "each ", "on ", count_text(each, "rank")));
}

}  // namespace

std::vector<std::string> rank_words(std::vector<std::int64_t> ranks) {
  std::ranges::sort(ranks);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    out.push_back(end - i == 1 ? concat(ranks[i]) : concat(ranks[i], '-', ranks[end - 1]));
    i = end;
  }
  for (std::size_t i = 0; i + 1 < out.size(); ++i) out[i] += ",";
  return out;
}

Panel make_panel(const Layout& layout, std::string place, const Shape& shape, const Face& face) {
  Panel panel{layout, std::move(place), {}, {}, {}, {}, 1, {}};
  note_partials(panel);
  note_other_dims(panel, shape, face);
  if (layout.mesh().size() <= kMostShownRanks) {
    show_each_rank(panel, shape, face);
  } else {
    show_first_rank(panel, shape, face);
  }
  const std::size_t most = kMostBorders * static_cast<std::size_t>(kMostShownRanks);
  if (panel.cells.size() > most || panel.of_first_rank.size() > most) {
    panel.cells.clear();
    panel.of_first_rank.clear();
    panel.notes.emplace_back("too many small blocks to be drawn");
  }
  return panel;
}

Face::Face(const Shape& shape) {
  if (shape.size() == 1) right = 0;
  if (shape.size() >= 2) {
    down = 0;
    right = 1;
  }
  if (down) rows = shape[*down];
  if (right) columns = shape[*right];
}

std::vector<Panel> make_panels(const Layout& layout, const Shape& shape) {
  constexpr std::size_t kMostSlices = 8;
  constexpr std::size_t kDeep = 2;
  Face face(shape);
  const bool deep = shape.size() > kDeep && layout.mesh().size() <= kMostShownRanks &&
                    !layout.axes_of(static_cast<int>(kDeep)).empty();
  std::set<std::pair<std::int64_t, std::int64_t>> slices;
  for (std::int64_t i = 0; deep && i < layout.mesh().size(); ++i) {
    const Boxes held = boxes(layout, shape, coordinate_at(layout.mesh(), i));
    for (const Range& run : held.runs(kDeep)) slices.emplace(run.begin, run.end);
  }
  if (slices.empty() || slices.size() > kMostSlices) return {make_panel(layout, "", shape, face)};
  std::vector<Panel> out;
  for (const auto& [begin, end] : slices) {
    face.slice = Range{begin, end};
    const std::string place =
        concat(face.slice->to_string(), " of ", dim_text(layout, shape, kDeep));
    out.push_back(make_panel(layout, place, shape, face));
  }
  return out;
}

std::vector<Panel> make_panels(const Plan& plan, const Face& face) {
  std::vector<Panel> out;
  out.push_back(
      make_panel(plan.from, plan.steps.empty() ? "from and to" : "from", plan.shape, face));
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const bool last = i + 1 == plan.steps.size();
    out.push_back(make_panel(plan.steps[i].after, last ? "to" : concat("after step ", i + 1),
                             plan.shape, face));
  }
  return out;
}

std::string dim_text(const Layout& layout, const Shape& shape, std::size_t dim) {
  std::string out = concat("dim ", dim, ": ", shape[dim]);
  for (const std::int8_t axis : layout.axes_of(static_cast<int>(dim))) {
    const auto a = static_cast<std::size_t>(axis);
    out += concat('@', layout.mesh().name(a));
    if (layout.placement(a).is_strided()) out += concat(':', layout.placement(a).split());
  }
  return out;
}

std::vector<std::string> holder_words(const Panel& panel, const Holders& holders) {
  std::string_view sign = "|";
  for (const Placement& p : panel.layout.placements()) {
    if (p.is_partial() && p.reduction() == Reduction::sum) sign = "+";
  }
  std::vector<std::string> out;
  for (const auto& [which, ranks] : holders.by_partial) {
    if (!out.empty()) out.back() += concat(' ', sign, ' ');
    for (std::string& word : rank_words(ranks)) out.push_back(std::move(word));
  }
  return out;
}

}  // namespace intarsia::draw
