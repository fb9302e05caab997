#include "world/guard/guard.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/hash.h"
#include "base/text.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "guard";
constexpr std::chrono::milliseconds kPatience{500};  // once something is wrong
constexpr std::chrono::milliseconds kBreath{10};

bool is_off() {
  const char* value = std::getenv("INTARSIA_GUARD");
  return value != nullptr && std::string_view(value) == "off";
}

/// Whether rank 0 wants a guard: a rank that decided for itself would be waited for by the others.
bool wanted(c10d::Store& store, int rank) {
  constexpr const char* kKey = "wanted";
  if (rank == 0) store.set(kKey, std::vector<std::uint8_t>{static_cast<std::uint8_t>(!is_off())});
  return store.get(kKey).at(0) == 1;
}

/// `rank 2`, `ranks 0, 1, 3`
std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  return concat(ranks.size() == 1 ? "rank " : "ranks ", join(ranks, ", "));
}

/// Ranks that have the same history.
struct Camp {
  std::vector<std::int64_t> ranks;
  std::string words;
};
using NotesByRank = std::map<std::int64_t, const Board::Group*>;

/// Who agrees with whom about a call, the most first. Ranks that did not make it are left out.
std::vector<Camp> camps_in(const NotesByRank& notes, std::uint64_t number) {
  std::map<std::uint64_t, Camp> camps;
  for (const auto& [rank, of_rank] : notes) {
    const auto history = of_rank == nullptr ? std::nullopt : of_rank->history(number);
    if (!history) continue;
    Camp& camp = camps[*history];
    camp.ranks.push_back(rank);
    if (camp.words.empty()) camp.words = of_rank->words(number);
  }
  std::vector<Camp> sorted;
  for (auto& [history, camp] : camps) sorted.push_back(std::move(camp));
  std::sort(sorted.begin(), sorted.end(), [](const Camp& a, const Camp& b) {
    return a.ranks.size() != b.ranks.size() ? a.ranks.size() > b.ranks.size() : a.ranks < b.ranks;
  });
  return sorted;
}

}  // namespace

Guard::Guard(std::unique_ptr<SymmetricMemory> memory) : memory_(std::move(memory)) {}

std::shared_ptr<Guard> Guard::make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   std::chrono::milliseconds timeout) {
  if (size == 1 || !store) return nullptr;
  const auto own = c10::make_intrusive<c10d::PrefixStore>("intarsia/guard", store);
  if (!wanted(*own, rank)) return nullptr;
  try {
    auto memory = make_host_memory(own, rank, size, sizeof(Board), {timeout});
    if (!memory) return nullptr;
    memory->reserve(0, sizeof(Board));
    return std::make_shared<Guard>(std::move(memory));
  } catch (const Error& error) {
    // All ranks come here: who cannot reach a board ends its own, for which the others wait.
    TORCH_WARN_ONCE("the calls of ranks are not compared: ", error.what());
    return nullptr;
  }
}

std::shared_ptr<GuardedGroup> Guard::join(const std::string& name,
                                          std::vector<std::int64_t> members) {
  const std::scoped_lock lock(mutex_);
  Board::Group* notes = mine().add(hash_text(name), name);
  if (notes == nullptr) return nullptr;
  return std::make_shared<GuardedGroup>(shared_from_this(), name, std::move(members), *notes);
}

void Guard::close(std::string_view why) {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
  memory_->close(why);
}

GuardedGroup::GuardedGroup(std::shared_ptr<Guard> guard, std::string name,
                           std::vector<std::int64_t> members, Board::Group& notes)
    : guard_(std::move(guard)),
      name_(std::move(name)),
      key_(hash_text(name_)),
      me_(guard_->memory_->rank()),
      others_(members.size() - 1),
      notes_(notes) {
  std::erase(members, me_);
  for (std::size_t i = 0; i < others_.size(); ++i) others_[i].rank = members[i];
}

GuardedGroup::~GuardedGroup() {
  const std::scoped_lock lock(guard_->mutex_);
  if (!guard_->closed_) guard_->mine().remove(notes_);
}

const Board::Group* GuardedGroup::notes_of(const Member& member) const {
  std::size_t place = member.place.load(std::memory_order_relaxed);
  const Board::Group* notes = guard_->board(member.rank)->find(key_, place);
  member.place.store(place, std::memory_order_relaxed);
  return notes;
}

std::uint64_t GuardedGroup::enter(const GuardedCall& call) {
  const std::scoped_lock lock(mutex_);
  const std::uint64_t number = calls_++;
  history_ =
      hash_mix(history_, hash_mix(hash_text(call.what) + static_cast<std::uint64_t>(call.bytes),
                                  hash_text(call.where)));
  words_.assign(call.what);
  if (call.bytes != 0) {
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), call.bytes).ptr;
    words_.append(", ").append(digits.data(), end).append(" bytes");
  }
  if (!call.where.empty()) words_.append(" in ").append(call.where);
  guard_->mine().note(notes_, number, history_, words_);
  compare(number);
  return number;
}

void GuardedGroup::compare(std::uint64_t number) const {
  const auto mine = notes_.history(number);
  if (!mine) return;
  for (const Member& other : others_) {
    // Where it was last seen. The same hash is that of the same group, so that nothing else is
    // read.
    const std::size_t place = other.place.load(std::memory_order_relaxed);
    if (guard_->board(other.rank)->at(place).history(number) == mine) continue;
    const Board::Group* notes = notes_of(other);
    if (notes == nullptr) continue;
    const auto theirs = notes->history(number);
    // Looked for again: the place may have become that of another group meanwhile.
    if (theirs && *theirs != *mine && notes_of(other) == notes) raise(disagreement(number));
  }
}

void GuardedGroup::look(std::uint64_t number) const {
  compare(number);
  for (const Member& other : others_) {
    // Asked before the notes, so that a call it made before it ended is not missed.
    const std::string gone = guard_->memory_->why_gone(static_cast<int>(other.rank));
    const Board::Group* notes = notes_of(other);
    if (notes != nullptr && notes->calls() > number) continue;
    const std::string trouble = guard_->board(other.rank)->trouble();
    if (!trouble.empty()) raise(trouble);
    if (!gone.empty()) raise(concat(gone, "; ", missing(number)));
  }
}

void GuardedGroup::explain(std::uint64_t number) const {
  // A process closes its connections a moment before it is known to have ended.
  const auto begin = std::chrono::steady_clock::now();
  do {
    look(number);
    const std::string absent = missing(number);
    for (const Member& other : others_) {
      const std::string gone = guard_->memory_->why_gone(static_cast<int>(other.rank));
      const std::string trouble = guard_->board(other.rank)->trouble();
      if (!trouble.empty()) raise(trouble);
      // Where one never came, those who came have ended for the same reason as this one will.
      if (!gone.empty() && absent.empty()) raise(concat(gone, "; ", last_call_of(other.rank)));
    }
    std::this_thread::sleep_for(kBreath);
  } while (std::chrono::steady_clock::now() - begin < kPatience);
}

void GuardedGroup::raise(const std::string& trouble) const {
  guard_->mine().tell(trouble);
  fail<GuardError>(kWhere, trouble);
}

std::uint64_t GuardedGroup::first_difference(std::uint64_t number) const {
  const std::uint64_t kept = std::min<std::uint64_t>(number, Board::kCalls - 1);
  for (std::uint64_t n = number - kept; n < number; ++n) {
    const auto mine = notes_.history(n);
    for (const Member& other : others_) {
      const Board::Group* notes = notes_of(other);
      const auto theirs = notes == nullptr ? std::nullopt : notes->history(n);
      if (mine && theirs && *theirs != *mine) return n;
    }
  }
  return number;
}

void GuardedGroup::wait_for_others(std::uint64_t number) const {
  const auto begin = std::chrono::steady_clock::now();
  const auto is_here = [&](const Member& other) {
    const Board::Group* notes = notes_of(other);
    return notes != nullptr && notes->calls() > number;
  };
  while (!std::all_of(others_.begin(), others_.end(), is_here) &&
         std::chrono::steady_clock::now() - begin < kPatience) {
    std::this_thread::sleep_for(kBreath);
  }
}

std::string GuardedGroup::disagreement(std::uint64_t number) const {
  const std::uint64_t first = first_difference(number);
  wait_for_others(first);  // so that the sentence says who is alone
  NotesByRank notes{{me_, &notes_}};
  for (const Member& other : others_) notes[other.rank] = notes_of(other);
  const std::vector<Camp> camps = camps_in(notes, first);
  const bool alike = std::all_of(camps.begin(), camps.end(),
                                 [&](const Camp& camp) { return camp.words == camps[0].words; });
  std::string text = concat("ranks disagree about call #", first, " of group ", name_,
                            alike ? ", or one long before it" : "", ":");
  for (const Camp& camp : camps) {
    text += concat(&camp == camps.data() ? " " : "; ", ranks_text(camp.ranks),
                   camp.ranks.size() == 1 ? " makes " : " make ",
                   camp.words.empty() ? "a call that is no longer known" : camp.words);
  }
  return text +
         ". All ranks of a group must make the same calls in the same order, also those that read "
         "a value, such as item(): is something done on one rank only, or with other sizes there?";
}

std::string GuardedGroup::last_call_of(std::int64_t rank) const {
  const Board::Group* last = guard_->board(rank)->last();
  if (last == nullptr || last->calls() == 0) return "it has made no call yet";
  const std::uint64_t number = last->calls() - 1;
  const auto ago =
      std::chrono::steady_clock::now().time_since_epoch() - std::chrono::nanoseconds(last->since());
  return concat("its last call was #", number, " of group ", last->name(), ", ",
                last->words(number), ", ",
                std::chrono::duration_cast<std::chrono::seconds>(ago).count(), " s ago");
}

std::string GuardedGroup::missing(std::uint64_t number) const {
  std::string text;
  for (const Member& other : others_) {
    const Board::Group* notes = notes_of(other);
    if (notes != nullptr && notes->calls() > number) continue;
    text += concat(text.empty() ? "" : "; ", "rank ", other.rank, " never came to call #", number,
                   " of group ", name_, ", ", notes_.words(number), ": ", last_call_of(other.rank));
  }
  return text;
}

}  // namespace intarsia
