#include "tools/plan/plan_picture.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "tools/plan/plan_panel.h"
#include "tools/plan/svg.h"

namespace intarsia::tools {
namespace {

constexpr std::size_t kMostSheets = 3;  // behind the first, for partial values
constexpr double kSheet = 6;            // from one sheet to the next
constexpr double kMargin = 24;
constexpr double kLine = 16;
constexpr double kSmall = 11;
constexpr double kPieceWidth = 210;  // of the full tensor
constexpr double kGap = 14;          // beside an arrow
constexpr std::string_view kGrey = "#5a5a5a";
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

// ---- drawing ----

class Picture {
 public:
  explicit Picture(const PlanReport& report)
      : report_(report),
        plan_(report.plan),
        face_(plan_.shape),
        panels_(make_panels(plan_, face_)) {
    measure();
  }

  std::string draw() {
    draw_head();
    double x = kMargin;
    for (std::size_t i = 0; i < panels_.size(); ++i) {
      if (i > 0) {
        draw_step(i - 1, x);
        x += step_widths_[i - 1];
      }
      draw_panel(panels_[i], x);
      x += panel_width_;
    }
    double width = std::max(x, head_width()) + kMargin;
    const double y = bottom_ + kLine;
    for (const std::string& line : foot_lines(width - 2 * kMargin)) {
      svg_.text_from(kMargin, y + foot_height_, line, {.size = kSmall, .color = kGrey});
      foot_height_ += kLine;
      width = std::max(width, width_of(line, kSmall) + 2 * kMargin);
    }
    return svg_.file(width, y + foot_height_ + kMargin / 2, title());
  }

 private:
  static constexpr double kTitle = 16;
  static constexpr double kCaption = 13;
  static constexpr double kText = 12;
  static constexpr double kMostHeight = 240;  // of the tensor
  static constexpr double kRow = 15;          // of a piece, to have a label

  std::string title() const {
    return concat(report_.tensor_text(), " on ", plan_.from.mesh(), ": ",
                  plan_.from.placements_text(), " to ", plan_.to.placements_text());
  }

  std::string summary() const {
    const std::string bound =
        report_.has_bound() ? concat(" (lower bound ", bytes_text(report_.in_all.missing), ")")
                            : "";
    return concat(count_text(plan_.collectives(), "collective"), ", a rank receives at most ",
                  bytes_text(report_.in_all.received), bound, ", ", time_text(plan_.seconds),
                  " by ", report_.topology_text(), ", holds at most ",
                  bytes_text(plan_.peak_bytes));
  }

  std::vector<std::string> foot_lines(double width) const {
    const Mesh& mesh = plan_.from.mesh();
    const bool each = mesh.size() <= kMostShownRanks;
    const std::int64_t first = mesh.rank_at(Coordinate(mesh.axes(), 0));
    std::string text = each ? "Numbers are ranks; " : concat(mesh.size(), " ranks; ");
    text += concat("the thick outline is what rank ", first, " holds.");
    const bool partial =
        std::ranges::any_of(panels_, [](const Panel& p) { return p.partials > 1; });
    if (partial) text += " Hatched sheets are partial values, to be reduced.";
    if (!plan_.steps.empty()) {
      text += " Bytes are what arrives at the rank that receives most.";
    }
    if (plan_.collectives() < plan_.steps.size()) {
      text += " Dashed arrows send nothing.";
    }
    return wrapped(text, kSmall, width);
  }

  double head_width() const {
    return kMargin + std::max(width_of(title(), kTitle), width_of(summary(), kText));
  }

  struct StepText {
    std::vector<std::string> above;
    std::vector<std::string> below;
  };

  StepText step_text(std::size_t i) const {
    const Step& step = plan_.steps[i];
    StepText out;
    out.above = {concat(i + 1, ". ", to_text(step.kind)), concat("along ", step.axes_text())};
    if (step.communicates()) out.below.push_back(bytes_text(report_.steps[i].received));
    out.below.push_back(time_text(step.seconds));
    if (step.chunks > 1) out.below.push_back(concat("in ", step.chunks, " parts"));
    return out;
  }

  /// All panels have one size, so that the eye can compare them.
  void measure() {
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
    for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
      const StepText text = step_text(i);
      double wide = 60;
      for (const auto& line : text.above) wide = std::max(wide, width_of(line, kText));
      for (const auto& line : text.below) wide = std::max(wide, width_of(line, kText));
      step_widths_.push_back(wide + 2 * kGap);
    }
    for (Panel& p : panels_) {
      if (!has_room(p)) p.notes.emplace_back("some pieces have no room for their ranks");
    }
    caption_ = kMargin + 4 * kLine;
    top_ = caption_ + 3 * kLine + kSheet * static_cast<double>(sheets_);
    bottom_ = top_ + height_;
    for (const Panel& p : panels_) {
      bottom_ = std::max(bottom_, top_ + height_ + kLine * static_cast<double>(notes(p).size()));
    }
    bottom_ += kLine;
  }

  static std::size_t rows_of(const Panel& p) {
    std::set<std::int64_t> tops;
    for (const auto& [cell, holders] : p.cells) tops.insert(cell.top);
    return tops.size();
  }

  /// Whether every piece can have its label.
  bool has_room(const Panel& p) const {
    return std::ranges::all_of(p.cells, [&](const auto& entry) {
      const Area area = area_of(entry.first, {0, 0, width_, height_});
      return fit(holder_words(p, entry.second), area.width, area.height).size > 0;
    });
  }

  std::string down_text(const Panel& p) const {
    return dim_text(p.layout, plan_.shape, *face_.down);
  }
  std::string right_text(const Panel& p) const {
    return dim_text(p.layout, plan_.shape, *face_.right);
  }

  std::vector<std::string> notes(const Panel& panel) const {
    std::vector<std::string> out;
    for (const std::string& note : panel.notes) {
      for (std::string& line : wrapped(note, kSmall, panel_width_)) out.push_back(std::move(line));
    }
    return out;
  }

  void draw_head() {
    svg_.text_from(kMargin, kMargin, title(), {.size = kTitle, .bold = true});
    svg_.text_from(kMargin, kMargin + 1.5 * kLine, summary(), {.size = kText, .color = kGrey});
  }

  void draw_step(std::size_t i, double x) {
    const double wide = step_widths_[i];
    const double y = top_ + height_ / 2;
    const StepText text = step_text(i);
    svg_.arrow(x + 6, x + wide - 6, y, !plan_.steps[i].communicates());
    for (std::size_t l = 0; l < text.above.size(); ++l) {
      const double up = kLine * static_cast<double>(text.above.size() - l);
      svg_.text(x + wide / 2, y - up + 2, text.above[l], {.size = kText, .bold = l == 0});
    }
    for (std::size_t l = 0; l < text.below.size(); ++l) {
      svg_.text(x + wide / 2, y + kLine * static_cast<double>(l + 1), text.below[l],
                {.size = kText});
    }
  }

  Area area_of(const Cell& cell, const Area& tensor) const {
    const double across = tensor.width / static_cast<double>(face_.columns);
    const double down = tensor.height / static_cast<double>(face_.rows);
    return {tensor.x + across * static_cast<double>(cell.left),
            tensor.y + down * static_cast<double>(cell.top),
            across * static_cast<double>(cell.right - cell.left),
            down * static_cast<double>(cell.bottom - cell.top)};
  }

  void draw_panel(const Panel& panel, double x) {
    const double middle = x + panel_width_ / 2;
    const Area tensor{middle - width_ / 2, top_, width_, height_};
    svg_.text(middle, caption_, panel.layout.placements_text(), {.size = kCaption, .bold = true});
    svg_.text(middle, caption_ + kLine, panel.place, {.size = kSmall, .color = kGrey});
    if (face_.right) {
      const double above = top_ - kSheet * static_cast<double>(sheets_) - 10;
      svg_.text(middle, above, right_text(panel), {.size = kSmall, .color = kGrey});
    }
    if (face_.down) {
      svg_.text(tensor.x - 11, top_ + height_ / 2, down_text(panel),
                {.size = kSmall, .color = kGrey, .upwards = true});
    }
    draw_sheets(panel, tensor);
    svg_.rectangle(tensor, "#f4f4f4", kEdge);
    draw_cells(panel, tensor);
    draw_borders(panel, tensor);
    if (panel.partials > 1) svg_.rectangle(tensor, Svg::kHatched, "");
    draw_labels(panel, tensor);
    draw_first_rank(panel, tensor);
    double y = top_ + height_ + kLine;
    for (const std::string& line : notes(panel)) {
      svg_.text(middle, y, line, {.size = kSmall});
      y += kLine;
    }
  }

  /// The other partial values, behind the first.
  void draw_sheets(const Panel& panel, const Area& tensor) {
    for (std::size_t i = std::min(panel.partials - 1, kMostSheets); i > 0; --i) {
      const double away = kSheet * static_cast<double>(i);
      const Area sheet{tensor.x + away, tensor.y - away, tensor.width, tensor.height};
      svg_.rectangle(sheet, "#f4f4f4", kEdge);
      svg_.rectangle(sheet, Svg::kHatched, "");
    }
  }

  void draw_cells(const Panel& panel, const Area& tensor) {
    for (const auto& [cell, holders] : panel.cells) {
      svg_.rectangle(area_of(cell, tensor), kColors[static_cast<std::size_t>(holders.first)],
                     kEdge);
    }
    if (!panel.cells.empty()) return;
    for (const Cell& cell : panel.of_first_rank) {
      svg_.rectangle(area_of(cell, tensor), kColors[0], "");
    }
  }

  void draw_borders(const Panel& panel, const Area& tensor) {
    for (const std::int64_t at : panel.row_borders) {
      const double y = area_of({at, at, 0, 0}, tensor).y;
      svg_.line(tensor.x, y, tensor.x + tensor.width, y, kEdge);
    }
    for (const std::int64_t at : panel.column_borders) {
      const double x = area_of({0, 0, at, at}, tensor).x;
      svg_.line(x, tensor.y, x, tensor.y + tensor.height, kEdge);
    }
  }

  void draw_labels(const Panel& panel, const Area& tensor) {
    for (const auto& [cell, holders] : panel.cells) {
      const Area area = area_of(cell, tensor);
      draw_label(svg_, area, fit(holder_words(panel, holders), area.width, area.height));
    }
  }

  void draw_first_rank(const Panel& panel, const Area& tensor) {
    for (const Cell& cell : panel.of_first_rank) {
      Area area = area_of(cell, tensor);
      const double in = std::min({1.0, area.width / 4, area.height / 4});
      area = {area.x + in, area.y + in, area.width - 2 * in, area.height - 2 * in};
      svg_.rectangle(area, "", kFirst, 2.5);
    }
  }

  const PlanReport& report_;
  const Plan& plan_;
  Face face_;
  std::vector<Panel> panels_;
  Svg svg_;
  std::vector<double> step_widths_;
  double panel_width_ = 0;
  double width_ = 0;   // of the tensor
  double height_ = 0;  // of the tensor
  std::size_t sheets_ = 0;
  double caption_ = 0;
  double top_ = 0;
  double bottom_ = 0;
  double foot_height_ = 0;
};

}  // namespace

std::string to_svg(const PlanReport& report) { return Picture(report).draw(); }

}  // namespace intarsia::tools
