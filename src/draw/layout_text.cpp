#include "draw/layout_text.h"

#include <algorithm>

#include "base/text.h"

namespace intarsia::draw {
namespace {

constexpr std::size_t kMostBorders = 32;  // rows or columns of a grid
constexpr std::size_t kWidest = 24;       // of a label, before it goes on in the next line

std::string padded(std::string_view text, std::size_t width) {
  return concat(text, std::string(width > text.size() ? width - text.size() : 0, ' '));
}

/// Words without spaces between them, in lines of some width.
std::vector<std::string> lines_of(const std::vector<std::string>& words) {
  std::vector<std::string> lines;
  for (const std::string& word : words) {
    if (!lines.empty() && lines.back().size() + word.size() <= kWidest) {
      lines.back() += word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

/// A panel's cells in rows and columns. All cells of a row begin and end at the same places, as an
/// axis shards one dimension only.
class Grid {
 public:
  Grid(const Panel& panel, const Face& face) : face_(face) {
    std::set<std::int64_t> rows{0, face.rows};
    std::set<std::int64_t> columns{0, face.columns};
    for (const auto& [cell, holders] : panel.cells) {
      rows.insert({cell.top, cell.bottom});
      columns.insert({cell.left, cell.right});
    }
    rows_.assign(rows.begin(), rows.end());
    columns_.assign(columns.begin(), columns.end());
    if (rows_.size() > kMostBorders || columns_.size() > kMostBorders || rows_.size() < 2 ||
        columns_.size() < 2) {
      return;
    }
    labels_.resize((rows_.size() - 1) * (columns_.size() - 1));
    heights_.assign(rows_.size() - 1, 1);
    widths_.assign(columns_.size() - 1, 1);
    for (const auto& [cell, holders] : panel.cells) {
      const std::size_t r = place_of(rows_, cell.top);
      const std::size_t c = place_of(columns_, cell.left);
      auto& label = labels_[r * widths_.size() + c];
      label = lines_of(holder_words(panel, holders));
      heights_[r] = std::max(heights_[r], label.size());
      for (const std::string& line : label) widths_[c] = std::max(widths_[c], line.size());
    }
    for (std::size_t c = 0; c < widths_.size(); ++c) {
      widths_[c] = std::max(widths_[c], concat(columns_[c]).size());
    }
    for (const std::int64_t row : rows_) left_ = std::max(left_, concat(row).size());
  }

  bool empty() const { return labels_.empty(); }

  std::string to_string() const {
    std::string out = face_.right ? head() : "";
    for (std::size_t r = 0; r < heights_.size(); ++r) {
      out += border(r);
      for (std::size_t line = 0; line < heights_[r]; ++line) out += row(r, line);
    }
    return out + border(heights_.size());
  }

 private:
  static std::size_t place_of(const std::vector<std::int64_t>& borders, std::int64_t at) {
    return static_cast<std::size_t>(std::ranges::lower_bound(borders, at) - borders.begin());
  }

  std::string head() const {
    std::string out(left_ + 1, ' ');
    for (std::size_t c = 0; c < widths_.size(); ++c) {
      out += padded(concat(columns_[c]), widths_[c] + 3);
    }
    return concat(out, columns_.back(), '\n');
  }

  std::string border(std::size_t r) const {
    const std::string place = face_.down ? concat(rows_[r]) : "";
    std::string out = concat(std::string(left_ - place.size(), ' '), place, ' ');
    for (const std::size_t width : widths_) out += concat('+', std::string(width + 2, '-'));
    return concat(out, "+\n");
  }

  std::string row(std::size_t r, std::size_t line) const {
    std::string out(left_ + 1, ' ');
    for (std::size_t c = 0; c < widths_.size(); ++c) {
      const auto& label = labels_[r * widths_.size() + c];
      out += concat("| ", padded(line < label.size() ? label[line] : "", widths_[c]), ' ');
    }
    return concat(out, "|\n");
  }

  Face face_;
  std::vector<std::int64_t> rows_;
  std::vector<std::int64_t> columns_;
  std::vector<std::vector<std::string>> labels_;
  std::vector<std::size_t> heights_;
  std::vector<std::size_t> widths_;
  std::size_t left_ = 0;
};

}  // namespace

std::string to_text(const Panel& panel, const Shape& shape, const Face& face) {
  std::string out;
  const auto add = [&out](std::string_view line) { out += concat(line, '\n'); };
  if (!panel.place.empty()) add(panel.place);
  std::vector<std::string> dims;
  if (face.down) dims.push_back(concat(dim_text(panel.layout, shape, *face.down), " goes down"));
  if (face.right) {
    dims.push_back(concat(dim_text(panel.layout, shape, *face.right), " to the right"));
  }
  if (!dims.empty()) add(join(dims, ", "));
  const Grid grid(panel, face);
  if (!panel.cells.empty() && !grid.empty()) {
    out += grid.to_string();
  } else if (!panel.cells.empty()) {
    add("too many pieces for a grid");
  }
  for (const std::string& note : panel.notes) add(note);
  return out;
}

}  // namespace intarsia::draw
