// Layouts as text: the pieces of a tensor as a grid, for terminals.
#pragma once

#include <string>

#include "draw/panel.h"

namespace intarsia::draw {

/// The grid of a panel and its notes. Empty lines stand for pieces without room.
std::string to_text(const Panel& panel, const Shape& shape, const Face& face);

}  // namespace intarsia::draw
