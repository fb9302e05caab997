// What boards say of their ranks, in sentences.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "world/guard/board.h"

namespace intarsia {

/// `rank 2`, `ranks 0, 1, 3`
std::string ranks_text(const std::vector<std::int64_t>& ranks);

/// The calls of a group on the board of a rank; null if it has none.
struct NotesOfRank {
  const Board* board = nullptr;
  const Board::Group* group = nullptr;
};
using NotesByRank = std::map<std::int64_t, NotesOfRank>;

/// Who makes which call, the most first, each with the line: `ranks disagree about call #7 of group
/// [dp=4]: ranks 0, 1, 3 make ...; rank 2 makes ...`. Ranks that did not make it are left out.
std::string disagreement_text(const NotesByRank& notes, std::uint64_t number,
                              std::string_view group);

/// `its last call was #181 of group [dp=4], all_gather of ... at train.py:88, 12 s ago; it is in
/// data since 12 s, at loader.py:17`. `now`: in nanoseconds of the steady clock.
std::string last_call_of(const Board& board, std::int64_t now = nanoseconds_now());

}  // namespace intarsia
