// Writing SVG: a few shapes and text, with room for the text known beforehand.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace intarsia::draw {

struct Area {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

struct TextStyle {
  double size = 12;
  std::string_view color = "#1b1b1b";
  bool bold = false;
  bool upwards = false;  ///< turned by a quarter, to be read from below
};

/// Collects shapes, the later ones above the earlier.
class Svg {
 public:
  /// Empty `stroke` or `fill`: none.
  void rectangle(const Area& area, std::string_view fill, std::string_view stroke,
                 double stroke_width = 1);
  void line(double x1, double y1, double x2, double y2, std::string_view stroke);
  /// From left to right; dashed where nothing travels.
  void arrow(double x1, double x2, double y, bool dashed);
  /// Centred at x, or around it when turned; y is the middle of the line.
  void text(double x, double y, std::string_view text, const TextStyle& style);
  /// The same, beginning at x.
  void text_from(double x, double y, std::string_view text, const TextStyle& style);

  /// The entire file, on a white ground. `title` is for readers that do not see it.
  std::string file(double width, double height, std::string_view title) const;

  /// The fill of partial values.
  static constexpr std::string_view kHatched = "url(#partial)";

 private:
  void add_text(double x, double y, std::string_view anchor, std::string_view text,
                const TextStyle& style);
  std::string body_;
};

/// Text as it stands in SVG and HTML.
std::string escaped(std::string_view text);

/// How wide text may get: fonts differ, so this is a little more than most need.
double width_of(std::string_view text, double size);

/// Words in lines of at most that width; a word that is wider has a line of its own.
std::vector<std::string> wrapped(std::string_view text, double size, double width);

}  // namespace intarsia::draw
