#include "draw/panel_drawing.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"

namespace intarsia::draw {
namespace {

constexpr std::size_t kMostSheets = 3;  // behind the first, for partial values
constexpr double kSheet = 6;            // from one sheet to the next
constexpr double kCaption = 13;
constexpr double kPieceWidth = 210;  // of the full tensor
constexpr double kMostHeight = 240;  // of the tensor
constexpr double kRow = 15;          // of a piece, to have a label
constexpr std::string_view kEdge = "#7a7a7a";
constexpr std::string_view kFirst = "#1f4e9c";  // around what the first rank holds

constexpr std::array<std::string_view, kMostShownRanks> kColors{
    "#bcd7f0", "#fbd3b0", "#c8e6c0", "#f4c2c8", "#d9cdee", "#f6e7a8", "#bfe5e3", "#e3d3c3",
    "#d3e0a9", "#f0c8e4", "#c9d2dc", "#ffdcd2", "#b6e0cd", "#d6d6f7", "#efe0c0", "#cfe8f6"};

// ---- labels in cells ----

struct Label {
  std::vector<std::string> lines;
  double size = 0;  ///< 0: it does not fit
  bool upwards = false;
};

/// Words are put together without a space, in as few lines as may be.
std::vector<std::string> filled(const std::vector<std::string>& words, double size, double width) {
  std::vector<std::string> lines;
  for (const std::string& word : words) {
    if (!lines.empty() && width_of(lines.back() + word, size) <= width) {
      lines.back() += word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

/// The largest that fits, upright if it can be.
Label fit(const std::vector<std::string>& words, double width, double height) {
  constexpr std::array kSizes{13.0, 11.0, 9.0, 7.0};
  constexpr double kSpacing = 1.15;
  for (const double size : kSizes) {
    for (const bool upwards : {false, true}) {
      const double along = (upwards ? height : width) - 5;
      const double across = (upwards ? width : height) - 4;
      std::vector<std::string> lines = filled(words, size, along);
      const bool narrow = std::ranges::all_of(
          lines, [&](const std::string& line) { return width_of(line, size) <= along; });
      if (narrow && static_cast<double>(lines.size()) * size * kSpacing <= across) {
        return {std::move(lines), size, upwards};
      }
    }
  }
  return {};
}

void draw_label(Svg& svg, const Area& area, const Label& label) {
  const double x = area.x + area.width / 2;
  const double y = area.y + area.height / 2;
  const double pitch = label.size * 1.15;
  for (std::size_t i = 0; i < label.lines.size(); ++i) {
    const double middle = static_cast<double>(label.lines.size() - 1) / 2;
    const double away = (static_cast<double>(i) - middle) * pitch;
    const double dx = label.upwards ? away : 0;
    const double dy = label.upwards ? 0 : away;
    svg.text(x + dx, y + dy, label.lines[i], {.size = label.size, .upwards = label.upwards});
  }
}

std::size_t rows_of(const Panel& p) {
  std::set<std::int64_t> tops;
  for (const auto& [cell, holders] : p.cells) tops.insert(cell.top);
  return tops.size();
}

}  // namespace

PanelDrawing::PanelDrawing(std::vector<Panel> panels, Shape shape, const Face& face, double caption)
    : panels_(std::move(panels)), shape_(shape), face_(face), caption_(caption) {
  const double scale = static_cast<double>(face_.rows) /
                       static_cast<double>(std::max<std::int64_t>(1, face_.columns));
  width_ = kPieceWidth;
  height_ = face_.down ? std::clamp(kPieceWidth * scale, 120.0, kMostHeight) : 70;
  panel_width_ = width_;
  for (const Panel& p : panels_) {
    sheets_ = std::max(sheets_, std::min(p.partials - 1, kMostSheets));
    panel_width_ = std::max(panel_width_, width_of(p.layout.placements_text(), kCaption));
    if (face_.right) {
      panel_width_ = std::max(panel_width_, width_of(right_text(p), kSmall));
    }
    if (!face_.down) continue;
    height_ = std::max(height_, width_of(down_text(p), kSmall));
    height_ = std::max(height_, std::min(kMostHeight, kRow * static_cast<double>(rows_of(p))));
  }
  // Room on both sides, so that the tensor stays in the middle.
  const double beside =
      std::max(face_.down ? kLine + 4 : 0.0, kSheet * static_cast<double>(sheets_));
  panel_width_ = std::max(panel_width_, width_ + 2 * beside);
  for (Panel& p : panels_) {
    if (!has_room(p)) p.notes.emplace_back("some pieces have no room for their ranks");
  }
  top_ = caption_ + 3 * kLine + kSheet * static_cast<double>(sheets_);
  bottom_ = top_ + height_;
  for (const Panel& p : panels_) {
    bottom_ = std::max(bottom_, top_ + height_ + kLine * static_cast<double>(notes(p).size()));
  }
  bottom_ += kLine;
}

std::string PanelDrawing::legend() const {
  const Mesh& mesh = panels_[0].layout.mesh();
  const bool each = mesh.size() <= kMostShownRanks;
  const std::int64_t first = mesh.rank_at(Coordinate(mesh.axes(), 0));
  std::string text = each ? "Numbers are ranks; " : concat(mesh.size(), " ranks; ");
  text += concat("the thick outline is what rank ", first, " holds.");
  const bool partial = std::ranges::any_of(panels_, [](const Panel& p) { return p.partials > 1; });
  if (partial) text += " Hatched sheets are partial values, to be reduced.";
  return text;
}

/// Whether every piece can have its label.
bool PanelDrawing::has_room(const Panel& p) const {
  return std::ranges::all_of(p.cells, [&](const auto& entry) {
    const Area area = area_of(entry.first, {0, 0, width_, height_});
    return fit(holder_words(p, entry.second), area.width, area.height).size > 0;
  });
}

std::string PanelDrawing::down_text(const Panel& p) const {
  return dim_text(p.layout, shape_, *face_.down);
}
std::string PanelDrawing::right_text(const Panel& p) const {
  return dim_text(p.layout, shape_, *face_.right);
}

std::vector<std::string> PanelDrawing::notes(const Panel& panel) const {
  std::vector<std::string> out;
  for (const std::string& note : panel.notes) {
    for (std::string& line : wrapped(note, kSmall, panel_width_)) out.push_back(std::move(line));
  }
  return out;
}

Area PanelDrawing::area_of(const Cell& cell, const Area& tensor) const {
  const double across = tensor.width / static_cast<double>(face_.columns);
  const double down = tensor.height / static_cast<double>(face_.rows);
  return {tensor.x + across * static_cast<double>(cell.left),
          tensor.y + down * static_cast<double>(cell.top),
          across * static_cast<double>(cell.right - cell.left),
          down * static_cast<double>(cell.bottom - cell.top)};
}

void PanelDrawing::draw(Svg& svg, std::size_t which, double x) const {
  const Panel& panel = panels_[which];
  const double middle = x + panel_width_ / 2;
  const Area tensor{middle - width_ / 2, top_, width_, height_};
  svg.text(middle, caption_, panel.layout.placements_text(), {.size = kCaption, .bold = true});
  if (!panel.place.empty()) {
    svg.text(middle, caption_ + kLine, panel.place, {.size = kSmall, .color = kGrey});
  }
  if (face_.right) {
    const double above = top_ - kSheet * static_cast<double>(sheets_) - 10;
    svg.text(middle, above, right_text(panel), {.size = kSmall, .color = kGrey});
  }
  if (face_.down) {
    svg.text(tensor.x - 11, top_ + height_ / 2, down_text(panel),
             {.size = kSmall, .color = kGrey, .upwards = true});
  }
  draw_sheets(svg, panel, tensor);
  svg.rectangle(tensor, "#f4f4f4", kEdge);
  draw_cells(svg, panel, tensor);
  draw_borders(svg, panel, tensor);
  if (panel.partials > 1) svg.rectangle(tensor, Svg::kHatched, "");
  draw_labels(svg, panel, tensor);
  draw_first_rank(svg, panel, tensor);
  double y = top_ + height_ + kLine;
  for (const std::string& line : notes(panel)) {
    svg.text(middle, y, line, {.size = kSmall});
    y += kLine;
  }
}

/// The other partial values, behind the first.
void PanelDrawing::draw_sheets(Svg& svg, const Panel& panel, const Area& tensor) const {
  for (std::size_t i = std::min(panel.partials - 1, kMostSheets); i > 0; --i) {
    const double away = kSheet * static_cast<double>(i);
    const Area sheet{tensor.x + away, tensor.y - away, tensor.width, tensor.height};
    svg.rectangle(sheet, "#f4f4f4", kEdge);
    svg.rectangle(sheet, Svg::kHatched, "");
  }
}

void PanelDrawing::draw_cells(Svg& svg, const Panel& panel, const Area& tensor) const {
  for (const auto& [cell, holders] : panel.cells) {
    svg.rectangle(area_of(cell, tensor), kColors[static_cast<std::size_t>(holders.first)], kEdge);
  }
  if (!panel.cells.empty()) return;
  for (const Cell& cell : panel.of_first_rank) {
    svg.rectangle(area_of(cell, tensor), kColors[0], "");
  }
}

void PanelDrawing::draw_borders(Svg& svg, const Panel& panel, const Area& tensor) const {
  for (const std::int64_t at : panel.row_borders) {
    const double y = area_of({at, at, 0, 0}, tensor).y;
    svg.line(tensor.x, y, tensor.x + tensor.width, y, kEdge);
  }
  for (const std::int64_t at : panel.column_borders) {
    const double x = area_of({0, 0, at, at}, tensor).x;
    svg.line(x, tensor.y, x, tensor.y + tensor.height, kEdge);
  }
}

void PanelDrawing::draw_labels(Svg& svg, const Panel& panel, const Area& tensor) const {
  for (const auto& [cell, holders] : panel.cells) {
    const Area area = area_of(cell, tensor);
    draw_label(svg, area, fit(holder_words(panel, holders), area.width, area.height));
  }
}

void PanelDrawing::draw_first_rank(Svg& svg, const Panel& panel, const Area& tensor) const {
  for (const Cell& cell : panel.of_first_rank) {
    Area area = area_of(cell, tensor);
    const double in = std::min({1.0, area.width / 4, area.height / 4});
    area = {area.x + in, area.y + in, area.width - 2 * in, area.height - 2 * in};
    svg.rectangle(area, "", kFirst, 2.5);
  }
}

}  // namespace intarsia::draw
