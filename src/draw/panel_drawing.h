// The drawing of panels: all of one size, so that the eye can compare them.
#pragma once

#include <string>
#include <vector>

#include "draw/panel.h"
#include "draw/svg.h"

namespace intarsia::draw {

inline constexpr double kMargin = 24;
inline constexpr double kLine = 16;
inline constexpr double kSmall = 11;
inline constexpr std::string_view kGrey = "#5a5a5a";

class PanelDrawing {
 public:
  /// `caption`: where the first line of text is.
  PanelDrawing(std::vector<Panel> panels, Shape shape, const Face& face, double caption);

  std::size_t size() const { return panels_.size(); }
  /// Of one panel, with room for its text.
  double width() const { return panel_width_; }
  /// The middle of the tensors, from top to bottom.
  double middle() const { return top_ + height_ / 2; }
  double bottom() const { return bottom_; }
  /// What the marks in the panels mean.
  std::string legend() const;

  void draw(Svg& svg, std::size_t panel, double x) const;

 private:
  bool has_room(const Panel& p) const;
  std::string down_text(const Panel& p) const;
  std::string right_text(const Panel& p) const;
  std::vector<std::string> notes(const Panel& panel) const;
  Area area_of(const Cell& cell, const Area& tensor) const;
  void draw_sheets(Svg& svg, const Panel& panel, const Area& tensor) const;
  void draw_cells(Svg& svg, const Panel& panel, const Area& tensor) const;
  void draw_borders(Svg& svg, const Panel& panel, const Area& tensor) const;
  void draw_labels(Svg& svg, const Panel& panel, const Area& tensor) const;
  void draw_first_rank(Svg& svg, const Panel& panel, const Area& tensor) const;

  std::vector<Panel> panels_;
  Shape shape_;
  Face face_;
  double panel_width_ = 0;
  double width_ = 0;   // of the tensor
  double height_ = 0;  // of the tensor
  std::size_t sheets_ = 0;
  double caption_ = 0;
  double top_ = 0;
  double bottom_ = 0;
};

}  // namespace intarsia::draw
