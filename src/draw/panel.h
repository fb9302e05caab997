// What a layout looks like: the pieces of a tensor's first two dimensions, and who holds them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "intarsia/boxes.h"
#include "intarsia/plan.h"

namespace intarsia::draw {

/// Up to so many ranks, every piece is shown; of more, that of the first.
inline constexpr std::int64_t kMostShownRanks = 16;

/// A rectangle of the first two dimensions.
struct Cell {
  std::int64_t top = 0;
  std::int64_t bottom = 0;
  std::int64_t left = 0;
  std::int64_t right = 0;
  friend auto operator<=>(const Cell&, const Cell&) = default;
};

/// The ranks that hold a cell, by partial value; and the place of the first in the mesh.
struct Holders {
  std::map<std::int64_t, std::vector<std::int64_t>> by_partial;
  std::int64_t first = 0;
};

/// A layout, ready to be drawn.
struct Panel {
  Layout layout;
  std::string place;  ///< `from`, `after step 1`, `to`
  std::map<Cell, Holders> cells;
  std::vector<Cell> of_first_rank;
  std::set<std::int64_t> row_borders;  ///< of pieces, if there are too many ranks to show each
  std::set<std::int64_t> column_borders;
  std::size_t partials = 1;
  std::vector<std::string> notes;
};

/// Dimension 0 goes down and 1 to the right; a single one goes to the right.
struct Face {
  std::optional<std::size_t> down;
  std::optional<std::size_t> right;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  /// Of a tensor with more dimensions: the positions along dimension 2 that are looked at. Unset:
  /// all.
  std::optional<Range> slice;

  explicit Face(const Shape& shape);
};

/// `place`: what is said below the placements.
Panel make_panel(const Layout& layout, std::string place, const Shape& shape, const Face& face);

/// Of a layout: one, or of a tensor that is sharded along dimension 2 one for each of the ranges
/// that its ranks hold there, unless they are many.
std::vector<Panel> make_panels(const Layout& layout, const Shape& shape);

/// Of the first layout of a plan, and of that after each step.
std::vector<Panel> make_panels(const Plan& plan, const Face& face);

/// `dim 0: 8@dp@tp`, with the axes that shard it in their order, and blocks as `8@dp:4`.
std::string dim_text(const Layout& layout, const Shape& shape, std::size_t dim);

/// `0-3,8`, in words that end with their commas.
std::vector<std::string> rank_words(std::vector<std::int64_t> ranks);

/// `0,` `4 + ` `1,` `5`: ranks that hold the same, and between partial values what joins them.
std::vector<std::string> holder_words(const Panel& panel, const Holders& holders);

}  // namespace intarsia::draw
