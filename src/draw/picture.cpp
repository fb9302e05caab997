#include "intarsia/picture.h"

#include <algorithm>

#include "base/text.h"
#include "draw/layout_text.h"
#include "draw/panel_drawing.h"
#include "intarsia/boxes.h"
#include "layout/coordinates.h"
#include "layout/element_size.h"
#include "plan/report.h"

namespace intarsia {
namespace {

using namespace draw;

constexpr double kTitle = 16;
constexpr double kText = 12;
constexpr std::int64_t kMostRows = 256;       // of the table of ranks
constexpr std::int64_t kCountedRanks = 4096;  // of more, the first

std::string title(const TensorType& type) {
  return concat(type.to_string(), " on ", type.layout.mesh());
}

std::int64_t bytes_of(const TensorType& type, const Shape& sizes) {
  std::int64_t bytes = element_size(type.dtype);
  for (const std::int64_t size : sizes) bytes *= size;
  return bytes;
}

std::string summary(const TensorType& type) {
  const Mesh& mesh = type.layout.mesh();
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < std::min(mesh.size(), kCountedRanks); ++i) {
    const Shape sizes = local_shape(type.layout, type.shape, coordinate_at(mesh, i));
    most = std::max(most, bytes_of(type, sizes));
  }
  return concat(bytes_text(bytes_of(type, type.shape)), "; a rank holds at most ",
                bytes_text(most));
}

/// A rank in the table.
struct Row {
  std::int64_t rank = 0;
  std::string coordinate;  ///< `dp=0, tp=1`
  std::string holds;       ///< `[0,4)x[2,3)`
  std::string sizes;       ///< `4x1`
  std::int64_t bytes = 0;
};

std::vector<Row> rows_of(const TensorType& type, std::int64_t most) {
  const Mesh& mesh = type.layout.mesh();
  std::vector<Row> out;
  for (std::int64_t i = 0; i < std::min(mesh.size(), most); ++i) {
    const Coordinate at = coordinate_at(mesh, i);
    const Boxes held = boxes(type.layout, type.shape, at);
    std::vector<std::string> places;
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      places.push_back(concat(mesh.name(a), '=', at[a]));
    }
    out.push_back({mesh.rank_at(at), join(places, ", "),
                   held.numel() == 0 ? "nothing" : held.to_string(), join(held.local_shape(), "x"),
                   bytes_of(type, held.local_shape())});
  }
  return out;
}

std::string as_text(const TensorType& type) {
  std::string out = concat(title(type), ", ", summary(type), "\n");
  for (const Panel& panel : make_panels(type.layout, type.shape)) {
    out += concat('\n', draw::to_text(panel, type.shape, Face(type.shape)));
  }
  if (type.layout.mesh().size() > kMostShownRanks) {
    const Row first = rows_of(type, 1)[0];
    out += concat("rank ", first.rank, " holds ", first.holds, '\n');
  }
  return out;
}

std::string as_svg(const TensorType& type) {
  constexpr double kBetween = 28;
  PanelDrawing panels(make_panels(type.layout, type.shape), type.shape, Face(type.shape),
                      kMargin + 4 * kLine);
  Svg svg;
  svg.text_from(kMargin, kMargin, title(type), {.size = kTitle, .bold = true});
  svg.text_from(kMargin, kMargin + 1.5 * kLine, summary(type), {.size = kText, .color = kGrey});
  double x = kMargin;
  for (std::size_t i = 0; i < panels.size(); ++i) {
    panels.draw(svg, i, x);
    x += panels.width() + kBetween;
  }
  double width = std::max({x - kBetween, kMargin + width_of(title(type), kTitle),
                           kMargin + width_of(summary(type), kText)}) +
                 kMargin;
  double y = panels.bottom() + kLine;
  for (const std::string& line : wrapped(panels.legend(), kSmall, width - 2 * kMargin)) {
    svg.text_from(kMargin, y, line, {.size = kSmall, .color = kGrey});
    y += kLine;
    width = std::max(width, width_of(line, kSmall) + 2 * kMargin);
  }
  return svg.file(width, y + kMargin / 2, title(type));
}

std::string as_html(const TensorType& type) {
  std::string out = concat("<div style=\"font: 13px/1.4 sans-serif\">\n", as_svg(type),
                           "<table style=\"border-collapse: collapse\">\n<tr>");
  constexpr std::string_view kCell = " style=\"text-align: left; padding: 1px 12px 1px 0\">";
  for (const std::string_view name : {"rank", "place", "holds", "sizes", "bytes"}) {
    out += concat("<th", kCell, name, "</th>");
  }
  out += "</tr>\n";
  for (const Row& row : rows_of(type, kMostRows)) {
    out += "<tr>";
    for (const std::string& text :
         {concat(row.rank), row.coordinate, row.holds, row.sizes, bytes_text(row.bytes)}) {
      out += concat("<td", kCell, escaped(text), "</td>");
    }
    out += "</tr>\n";
  }
  out += "</table>\n";
  if (type.layout.mesh().size() > kMostRows) {
    out += concat("<p>and ", type.layout.mesh().size() - kMostRows, " more ranks</p>\n");
  }
  return out + "</div>\n";
}

}  // namespace

std::string picture(const TensorType& type, PictureFormat format) {
  check(type);
  switch (format) {
    case PictureFormat::text:
      return as_text(type);
    case PictureFormat::svg:
      return as_svg(type);
    case PictureFormat::html:
      return as_html(type);
  }
  return "";
}

}  // namespace intarsia
