// What a board says, as a message, and a copy of it elsewhere.
#pragma once

#include <cstdint>
#include <vector>

#include "world/guard/board.h"

namespace intarsia {

/// Its calls, troubles, errors and where its rank is; times as how long ago they were, since clocks
/// of hosts differ. Neither values nor the times of steps.
std::vector<std::uint8_t> to_message(const Board& board);

/// Makes a copy say what a message says. REQUIRES: messages of one board, in their order.
void take_message(const std::vector<std::uint8_t>& bytes, Board& copy);

}  // namespace intarsia
