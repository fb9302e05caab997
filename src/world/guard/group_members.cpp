#include "world/guard/group_members.h"

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "world/guard/report.h"

namespace intarsia {

GroupMembers::GroupMembers(Boards& boards, std::string title, std::vector<std::int64_t> ranks,
                           const Board::Group& notes)
    : boards_(boards),
      title_(std::move(title)),
      key_(hash_text(title_)),
      ranks_(std::move(ranks)),
      near_ranks_(boards.near(ranks_)),
      me_(boards.rank()),
      others_(ranks_.size() - 1),
      notes_(notes) {
  auto next_near = others_.begin();
  auto next_far = others_.begin() + static_cast<std::ptrdiff_t>(near_ranks_.size()) - 1;
  for (const std::int64_t rank : ranks_) {
    if (rank == me_) continue;
    Member& other = boards_.is_near(rank) ? *next_near++ : *next_far++;
    other.rank = rank;
    other.board = boards_.at(rank);
  }
}

const Board::Group* GroupMembers::notes_of(const Member& member) const {
  std::size_t place = member.place.load(std::memory_order_relaxed);
  const Board::Group* notes = member.board->find(key_, place);
  member.place.store(place, std::memory_order_relaxed);
  return notes;
}

bool GroupMembers::has_made(const Member& member, std::uint64_t number) const {
  const Board::Group* notes = notes_of(member);
  return notes != nullptr && notes->calls() > number;
}

bool GroupMembers::differs(std::uint64_t number, std::span<const Member> others) const {
  const auto mine = notes_.history(number);
  if (!mine) return false;
  return std::any_of(others.begin(), others.end(), [&](const Member& other) {
    // Where it was last seen. The same hash is that of the same group, so that nothing else is
    // read.
    const std::size_t place = other.place.load(std::memory_order_relaxed);
    if (other.board->at(place).history(number) == mine) return false;
    const Board::Group* notes = notes_of(other);
    if (notes == nullptr) return false;
    const auto theirs = notes->history(number);
    // Looked for again: the place may have become that of another group meanwhile.
    return theirs && *theirs != *mine && notes_of(other) == notes;
  });
}

std::uint64_t GroupMembers::first_difference(std::uint64_t number) const {
  const std::uint64_t kept = std::min<std::uint64_t>(number, Board::kCalls - 1);
  for (std::uint64_t n = number - kept; n < number; ++n) {
    if (differs(n, others())) return n;
  }
  return number;
}

std::string GroupMembers::disagreement(std::uint64_t number) const {
  NotesByRank notes{{me_, {boards_.at(me_), &notes_}}};
  for (const Member& other : others_) notes[other.rank] = {other.board, notes_of(other)};
  return disagreement_text(notes, first_difference(number), title_);
}

std::string GroupMembers::missing(std::uint64_t number) const {
  std::string text;
  for (const Member& other : others_) {
    if (has_made(other, number)) continue;
    text += concat(text.empty() ? "" : "; ", "rank ", other.rank, " never came to call #", number,
                   " of group ", title_, ", ", boards_.at(me_)->words(notes_, number), ": ",
                   boards_.last_call(other.rank));
  }
  return text.empty() ? text : text + boards_.awaited();
}

std::vector<std::int64_t> GroupMembers::waiting_in(std::uint64_t number) const {
  std::vector<std::int64_t> waiting{me_};
  for (const Member& other : others_) {
    if (has_made(other, number)) waiting.push_back(other.rank);
  }
  std::sort(waiting.begin(), waiting.end());
  return waiting;
}

// ---- members on other hosts ---------------------------------------------------------------------

std::string GroupMembers::joined_key(std::int64_t rank) const {
  return concat("joined/", key_, '/', rank);
}

void GroupMembers::announce() const { boards_.store()->set(joined_key(me_), std::string("1")); }

bool GroupMembers::has_joined(const Member& other) const {
  if (notes_of(other) != nullptr) return true;
  if (boards_.is_near(other.rank)) return false;
  try {
    constexpr std::chrono::milliseconds kSlice{200};
    boards_.store()->wait({joined_key(other.rank)}, kSlice);
    return true;
  } catch (const std::exception&) {
    return false;  // not yet
  }
}

void GroupMembers::ask(std::uint64_t number) const {
  if (far().empty()) return;
  for (const Member& other : near()) {
    const bool asks = has_made(other, number) && !other.board->in_trouble();
    if (other.rank < me_ && asks) return;
  }
  ask();
}

}  // namespace intarsia
