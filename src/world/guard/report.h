// What boards say of their ranks, in sentences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "world/guard/board.h"

namespace intarsia {

/// `rank 2`, `ranks 0, 1, 3`
std::string ranks_text(const std::vector<std::int64_t>& ranks);

/// `its last call was #181 of group [dp=4], all_gather of ... at train.py:88, 12 s ago; it is in
/// data since 12 s, at loader.py:17`. `now`: in nanoseconds of the steady clock.
std::string last_call_of(const Board& board, std::int64_t now = nanoseconds_now());

}  // namespace intarsia
