#include "draw/svg.h"

#include <array>
#include <cstdio>

#include "base/text.h"

namespace intarsia::draw {
namespace {

constexpr std::string_view kInk = "#1b1b1b";
constexpr double kCharacter = 0.63;  // of the font's size, on average

/// One digit behind the point is finer than the eye.
std::string number(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  std::string out = text.data();
  if (out.ends_with(".0")) out.resize(out.size() - 2);
  return out == "-0" ? "0" : out;
}

std::string_view or_none(std::string_view paint) { return paint.empty() ? "none" : paint; }

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

void Svg::rectangle(const Area& area, std::string_view fill, std::string_view stroke,
                    double stroke_width) {
  body_ += concat("<rect x=\"", number(area.x), "\" y=\"", number(area.y), "\" width=\"",
                  number(area.width), "\" height=\"", number(area.height), "\" fill=\"",
                  or_none(fill), "\" stroke=\"", or_none(stroke), '"');
  if (stroke_width != 1) body_ += concat(" stroke-width=\"", number(stroke_width), '"');
  body_ += "/>\n";
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view stroke) {
  body_ += concat("<line x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"", number(x2),
                  "\" y2=\"", number(y2), "\" stroke=\"", stroke, "\"/>\n");
}

void Svg::arrow(double x1, double x2, double y, bool dashed) {
  constexpr double kHead = 9;
  body_ += concat("<path d=\"M", number(x1), ' ', number(y), " H", number(x2 - kHead),
                  "\" fill=\"none\" stroke=\"", kInk, "\" stroke-width=\"2\"",
                  dashed ? " stroke-dasharray=\"5 4\"" : "", "/>\n");
  body_ += concat("<path d=\"M", number(x2), ' ', number(y), " l-", number(kHead), " -5 v10 z\"",
                  " fill=\"", kInk, "\"/>\n");
}

void Svg::text(double x, double y, std::string_view text, const TextStyle& style) {
  add_text(x, y, "middle", text, style);
}

void Svg::text_from(double x, double y, std::string_view text, const TextStyle& style) {
  add_text(x, y, "start", text, style);
}

void Svg::add_text(double x, double y, std::string_view anchor, std::string_view text,
                   const TextStyle& style) {
  constexpr double kMiddle = 0.36;  // of the font's size, from the middle of a line to its foot
  const double down = style.size * kMiddle;
  const double left = style.upwards ? x + down : x;
  const double foot = style.upwards ? y : y + down;
  body_ += concat("<text x=\"", number(left), "\" y=\"", number(foot), "\" font-size=\"",
                  number(style.size), "\" fill=\"", style.color, "\" text-anchor=\"", anchor, '"',
                  style.bold ? " font-weight=\"bold\"" : "");
  if (style.upwards) {
    body_ += concat(" transform=\"rotate(-90 ", number(left), ' ', number(foot), ")\"");
  }
  body_ += concat('>', escaped(text), "</text>\n");
}

std::string Svg::file(double width, double height, std::string_view title) const {
  const std::string w = number(width);
  const std::string h = number(height);
  return concat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", w, "\" height=\"", h,
      "\" viewBox=\"0 0 ", w, ' ', h, "\" font-family=\"Helvetica, Arial, sans-serif\">\n",
      "<title>", escaped(title), "</title>\n",
      "<defs><pattern id=\"partial\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\">",
      "<path d=\"M0 7 L7 0\" stroke=\"#6b6b6b\" stroke-width=\"0.7\" stroke-opacity=\"0.5\"/>",
      "</pattern></defs>\n", "<rect width=\"", w, "\" height=\"", h, "\" fill=\"#ffffff\"/>\n",
      body_, "</svg>\n");
}

double width_of(std::string_view text, double size) {
  return static_cast<double>(text.size()) * size * kCharacter;
}

std::vector<std::string> wrapped(std::string_view text, double size, double width) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!lines.empty() && width_of(concat(lines.back(), ' ', word), size) <= width) {
      lines.back() += concat(' ', word);
    } else {
      lines.emplace_back(word);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace intarsia::draw
