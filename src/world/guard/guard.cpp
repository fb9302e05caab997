#include "world/guard/guard.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/hash.h"
#include "base/text.h"
#include "world/guard/program.h"
#include "world/guard/report.h"
#include "world/transport/away.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "guard";
constexpr std::chrono::milliseconds kPatience{500};  // once something is wrong
constexpr std::chrono::milliseconds kBreath{10};

std::string_view setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

bool is_off() { return setting("INTARSIA_GUARD") == "off"; }

/// A file in INTARSIA_GUARD_DIR, so that the board is still there when all processes have ended;
/// empty if that is not set, or no folder that can be written to.
std::string file_of_board(int rank) {
  const std::string folder(setting("INTARSIA_GUARD_DIR"));
  if (folder.empty()) return {};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error || ::access(folder.c_str(), W_OK) != 0) {
    TORCH_WARN_ONCE("the guard keeps no files: INTARSIA_GUARD_DIR=", folder,
                    " cannot be written to");
    return {};
  }
  return concat(folder, "/rank", rank, ".board");
}

/// A number for this guard, if rank 0 wants one; else 0: a rank that decided for itself would be
/// waited for by the others.
std::uint64_t agree_on_job(c10d::Store& store, int rank) {
  constexpr const char* kKey = "job";
  if (rank == 0) {
    std::random_device random;
    const std::uint64_t job = is_off() ? 0 : (std::uint64_t{random()} << 32 | random()) | 1;
    const std::string text = std::to_string(job);
    store.set(kKey, std::vector<std::uint8_t>(text.begin(), text.end()));
  }
  const std::vector<std::uint8_t> text = store.get(kKey);
  return std::stoull(std::string(text.begin(), text.end()));
}

}  // namespace

Guard::Guard(std::unique_ptr<SymmetricMemory> memory, std::uint64_t job)
    : memory_(std::move(memory)) {
  mine().sign(memory_->rank(), memory_->size(), ::getpid(), job);
  BoardsOfGuard boards{.mine = &mine()};
  for (int rank = 0; rank < memory_->size(); ++rank) boards.all.push_back(board(rank));
  Program::instance().add(std::move(boards));
}

Guard::~Guard() { Program::instance().remove(mine()); }

std::shared_ptr<Guard> Guard::make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   std::chrono::milliseconds timeout) {
  if (size == 1 || !store) return nullptr;
  const auto own = c10::make_intrusive<c10d::PrefixStore>("intarsia/guard", store);
  const std::uint64_t job = agree_on_job(*own, rank);
  if (job == 0) return nullptr;
  try {
    auto memory = make_host_memory(
        own, rank, size, sizeof(Board),
        {.timeout = timeout, .label = "intarsia-guard", .file = file_of_board(rank)});
    if (!memory) return nullptr;
    memory->reserve(0, sizeof(Board));
    return std::make_shared<Guard>(std::move(memory), job);
  } catch (const Error& error) {
    // All ranks come here: who cannot reach a board ends its own, for which the others wait.
    TORCH_WARN_ONCE("the calls of ranks are not compared: ", error.what());
    return nullptr;
  }
}

std::shared_ptr<GuardedGroup> Guard::join(const std::string& name,
                                          std::vector<std::int64_t> members, std::int64_t before) {
  const std::scoped_lock lock(mutex_);
  const std::string title = before == 0 ? name : concat(name, " #", before);
  Board::Group* notes = mine().add(hash_text(title), title);
  if (notes == nullptr) return nullptr;
  auto group =
      std::make_shared<GuardedGroup>(shared_from_this(), name, title, std::move(members), *notes);
  Clock& clock = clocks_[name];
  clock.group = group.get();
  clock.left = false;
  return group;
}

std::uint64_t Guard::Place::key() const { return hash_mix(kind, time) | 1; }  // zero is none

std::optional<Guard::Place> Guard::place_of(const std::string& group, std::string_view what) {
  const std::scoped_lock lock(mutex_);
  Clock& clock = clocks_[group];
  if (clock.left) return std::nullopt;
  const bool is_joined = clock.group != nullptr;
  const std::uint64_t calls = is_joined ? clock.group->notes_.calls() : 0;
  const std::uint64_t place = hash_mix(is_joined ? clock.group->key_ : hash_text(group), calls);
  if (place != std::exchange(clock.place, place)) clock.asked.clear();
  const std::uint64_t kind = hash_mix(place, hash_text(what)) | 1;  // zero is none
  return Place{kind, clock.asked[kind]++};
}

void Guard::check_value(const std::string& group, const std::vector<std::int64_t>& members,
                        std::string_view what, std::uint64_t hash, std::string_view way_out) {
  const auto place = place_of(group, what);
  if (!place) return;
  mine().note_had(place->kind, hash);
  mine().note_value(place->key(), hash);
  for (const std::int64_t rank : members) {
    const auto theirs = board(rank)->value(place->key());
    if (!theirs || *theirs == hash) continue;
    const std::string line = current_line();
    Doubt doubt{
        rank,
        place->kind,
        hash,
        *theirs,
        members,
        concat(what, " differs between rank ", memory_->rank(), " and rank ", rank, " of group ",
               group, line.empty() ? "" : " (", line, line.empty() ? "" : ")", "; ", way_out)};
    const std::scoped_lock lock(mutex_);
    clocks_[group].doubts.push_back(std::move(doubt));
    ++doubts_;
  }
}

bool Guard::is_unfounded(const Doubt& doubt, bool all_here) const {
  return std::any_of(doubt.members.begin(), doubt.members.end(), [&](std::int64_t member) {
    const Board& of_member = *board(member);
    return (all_here && !of_member.had(doubt.kind)) ||
           (of_member.had(doubt.kind, doubt.mine) && of_member.had(doubt.kind, doubt.theirs));
  });
}

std::optional<Guard::Doubt> Guard::first_doubt(const std::vector<std::int64_t>& members,
                                               bool all_here) {
  const std::scoped_lock lock(mutex_);
  for (auto& [group, clock] : clocks_) {
    doubts_ -= std::erase_if(clock.doubts, [&](const Doubt& doubt) {
      return doubt.members == members && is_unfounded(doubt, all_here);
    });
    for (const Doubt& doubt : clock.doubts) {
      if (doubt.members == members) return doubt;
    }
  }
  return std::nullopt;
}

void Guard::settle_doubts(const std::vector<std::int64_t>& members,
                          std::chrono::milliseconds patience,
                          const std::function<bool(std::int64_t rank)>& is_here) {
  const auto begin = std::chrono::steady_clock::now();
  while (doubts_.load(std::memory_order_relaxed) != 0) {
    // Here they have had all values that they will have before.
    const bool all_here = std::all_of(members.begin(), members.end(), is_here);
    const auto doubt = first_doubt(members, all_here);
    if (!doubt) return;
    if (all_here) raise(doubt->trouble);
    for (const std::int64_t rank : members) {
      const std::string trouble = board(rank)->trouble();
      if (!trouble.empty()) raise(trouble);
      if (!memory_->why_gone(static_cast<int>(rank)).empty()) return;
    }
    if (std::chrono::steady_clock::now() - begin > patience) return;
    std::this_thread::sleep_for(kBreath / 10);
  }
}

std::vector<std::int64_t> Guard::doubted(const std::string& group) {
  const std::scoped_lock lock(mutex_);
  const std::vector<Doubt>& doubts = clocks_[group].doubts;
  return doubts.empty() ? std::vector<std::int64_t>() : doubts.front().members;
}

void Guard::check_trouble(const std::string& group, const std::vector<std::int64_t>& ranks) {
  if (const auto place = place_of(group, "reading a number")) {
    mine().note_value(place->key(), 1);
    settle_doubts(doubted(group), kPatience, [&](std::int64_t rank) {
      return rank == memory_->rank() || board(rank)->value(place->key()).has_value();
    });
  }
  for (const std::int64_t rank : ranks) {
    const std::string trouble = board(rank)->trouble();
    if (!trouble.empty()) raise(trouble);
  }
}

std::string Guard::why_gone(std::int64_t rank) const {
  const std::string why = memory_->why_gone(static_cast<int>(rank));
  const std::string error = why.empty() ? std::string() : board(rank)->error();
  return error.empty() ? why : concat(why, "; its last error was: ", error);
}

std::string Guard::awaited() const {
  const int me = memory_->rank();
  for (std::size_t place = 0; place < Board::kGroups; ++place) {
    const Board::Group* mine = board(me)->group_at(place);
    if (mine == nullptr) continue;
    std::vector<std::int64_t> waiting;
    std::string words;
    for (int rank = 0; rank < memory_->size(); ++rank) {
      std::size_t found = 0;
      const Board& theirs = *board(rank);
      const Board::Group* group = theirs.find(board(me)->key_at(place), found);
      if (rank == me || group == nullptr || group != theirs.last()) continue;
      if (group->calls() <= mine->calls()) continue;
      waiting.push_back(rank);
      words = group->words(mine->calls());
    }
    if (waiting.empty()) continue;
    return concat("; ", ranks_text(waiting), waiting.size() == 1 ? " waits" : " wait", " for rank ",
                  me, " in call #", mine->calls(), " of group ", mine->name(),
                  words.empty() ? "" : ", ", words);
  }
  return {};
}

void Guard::raise(const std::string& trouble) {
  mine().tell(trouble);
  if (setting("INTARSIA_GUARD_ACTION") == "abort") {
    std::cerr << concat("[guard] rank ", memory_->rank(), " ends: ", trouble, '\n') << std::flush;
    std::abort();
  }
  fail<GuardError>(kWhere, trouble);
}

void Guard::close(std::string_view why) {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
  memory_->close(why);
}

GuardedGroup::GuardedGroup(std::shared_ptr<Guard> guard, std::string name, std::string title,
                           std::vector<std::int64_t> members, Board::Group& notes)
    : guard_(std::move(guard)),
      name_(std::move(name)),
      title_(std::move(title)),
      key_(hash_text(title_)),
      members_(std::move(members)),
      me_(guard_->memory_->rank()),
      others_(members_.size() - 1),
      mine_(guard_->mine()),
      notes_(notes) {
  auto other = others_.begin();
  for (const std::int64_t rank : members_) {
    if (rank == me_) continue;
    other->rank = rank;
    (other++)->board = guard_->board(rank);
  }
}

GuardedGroup::~GuardedGroup() {
  const std::scoped_lock lock(guard_->mutex_);
  Guard::Clock& clock = guard_->clocks_[name_];
  if (clock.group == this) {
    guard_->doubts_ -= clock.doubts.size();
    clock = {.left = true};
  }
  if (!guard_->closed_) guard_->mine().remove(notes_);
}

std::shared_ptr<GuardedGroup> GuardedGroup::messages(std::size_t from, std::size_t to,
                                                     int tag) const {
  const std::int64_t sends = members_.at(from);
  const std::int64_t receives = members_.at(to);
  std::string name = concat("of messages from rank ", sends, " to rank ", receives, " in ", title_);
  if (tag != 0) name += concat(", tag ", tag);
  return guard_->join(name, {sends, receives});
}

const Board::Group* GuardedGroup::notes_of(const Member& member) const {
  std::size_t place = member.place.load(std::memory_order_relaxed);
  const Board::Group* notes = member.board->find(key_, place);
  member.place.store(place, std::memory_order_relaxed);
  return notes;
}

void GuardedGroup::settle_doubts(std::uint64_t next) const {
  // The call could not end before the others come to it. Where they do not for long, it is made,
  // and the next one decides.
  constexpr std::chrono::milliseconds kLong = std::chrono::seconds(5);
  guard_->settle_doubts(members_, kLong, [&](std::int64_t rank) {
    std::size_t place = 0;
    const Board::Group* notes = guard_->board(rank)->find(key_, place);
    return notes != nullptr && notes->reached() > next;
  });
}

std::uint64_t GuardedGroup::enter(const GuardedCall& call) {
  // It would meet a call that another member has given up.
  if (mine_.in_trouble()) guard_->raise(mine_.trouble());
  const std::uint64_t next = notes_.calls();
  mine_.note_reached(notes_, next);
  if (guard_->doubts_.load(std::memory_order_relaxed) != 0) settle_doubts(next);
  std::unique_lock lock(mutex_);
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
  mine_.note(notes_, number, history_, words_);
  lock.unlock();
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
    if (other.board->at(place).history(number) == mine) continue;
    const Board::Group* notes = notes_of(other);
    if (notes == nullptr) continue;
    const auto theirs = notes->history(number);
    // Looked for again: the place may have become that of another group meanwhile.
    if (theirs && *theirs != *mine && notes_of(other) == notes) {
      note_line(number, current_line());
      guard_->raise(disagreement(number));
    }
  }
}

void GuardedGroup::look(std::uint64_t number) const {
  compare(number);
  const std::string absent = missing(number);
  for (const Member& other : others_) {
    // Asked before the notes, so that a call it made before it ended is not missed.
    const std::string gone = guard_->why_gone(other.rank);
    const Board::Group* notes = notes_of(other);
    if (notes != nullptr && notes->calls() > number) {
      // A rank may end once all it has to send is sent, but not die: those who are still to come
      // would wait for it.
      if (!absent.empty() && guard_->memory_->has_died(static_cast<int>(other.rank))) {
        guard_->raise(concat(gone, " in that call; ", absent));
      }
      continue;
    }
    const std::string trouble = other.board->trouble();
    if (!trouble.empty()) guard_->raise(trouble);
    if (!gone.empty()) guard_->raise(concat(gone, "; ", missing(number)));
  }
}

void GuardedGroup::note_line(std::uint64_t number, std::string_view line) const {
  if (!line.empty()) mine_.note_line(notes_, number, line);
}

void GuardedGroup::meet(std::chrono::milliseconds timeout) const {
  const auto begin = std::chrono::steady_clock::now();
  for (const Member& other : others_) {
    while (notes_of(other) == nullptr) {
      const std::string trouble = other.board->trouble();
      if (!trouble.empty()) guard_->raise(trouble);
      const std::string gone = guard_->why_gone(other.rank);
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (gone.empty() && waited < timeout) {
        std::this_thread::sleep_for(waited < kBreath ? std::chrono::microseconds(50) : kBreath / 4);
        continue;
      }
      if (notes_of(other) != nullptr) break;  // it came before it went
      const std::string why = !gone.empty() ? gone : concat("waited ", timeout.count(), " ms");
      guard_->raise(concat(why, "; rank ", other.rank, " never came to make group ", title_,
                           ", which all its members use: ", last_call_of(*other.board),
                           guard_->awaited()));
    }
  }
}

void GuardedGroup::explain(std::uint64_t number) const {
  // A process closes its connections a moment before it is known to have ended.
  const auto begin = std::chrono::steady_clock::now();
  do {
    look(number);
    const std::string absent = missing(number);
    for (const Member& other : others_) {
      const std::string gone = guard_->why_gone(other.rank);
      const std::string trouble = other.board->trouble();
      if (!trouble.empty()) guard_->raise(trouble);
      // Where one never came, those who came have ended for the same reason as this one will.
      if (!gone.empty() && absent.empty())
        guard_->raise(concat(gone, "; ", last_call_of(*other.board)));
    }
    std::this_thread::sleep_for(kBreath);
  } while (std::chrono::steady_clock::now() - begin < kPatience);
  // This rank ends now: the others are not to take it for the one who is missing.
  if (const std::string absent = missing(number); !absent.empty()) mine_.tell(absent);
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
  const bool with_lines = !notes_.line(number).empty();
  const auto is_here = [&](const Member& other) {
    const Board::Group* notes = notes_of(other);
    return notes != nullptr && notes->calls() > number &&
           (!with_lines || !notes->line(number).empty());
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
  return disagreement_text(notes, first, title_);
}

void GuardedGroup::give_notice(std::uint64_t number, std::chrono::seconds waited) const {
  std::vector<std::int64_t> waiting{me_};
  for (const Member& other : others_) {
    const Board::Group* notes = notes_of(other);
    if (notes != nullptr && notes->calls() > number) waiting.push_back(other.rank);
  }
  std::sort(waiting.begin(), waiting.end());
  if (waiting.front() != me_) return;
  const std::string absent = missing(number);
  const std::string line = notes_.line(number);
  std::cerr << concat("[guard] ", ranks_text(waiting), waiting.size() == 1 ? " waits" : " wait",
                      " since ", waited.count(), " s", line.empty() ? "" : " at ", line, ": ",
                      absent.empty()
                          ? concat("all have made call #", number, " of group ", title_, ", ",
                                   notes_.words(number), ", and the backend has not ended it")
                          : absent,
                      '\n')
            << std::flush;
}

std::string GuardedGroup::missing(std::uint64_t number) const {
  std::string text;
  for (const Member& other : others_) {
    const Board::Group* notes = notes_of(other);
    if (notes != nullptr && notes->calls() > number) continue;
    text +=
        concat(text.empty() ? "" : "; ", "rank ", other.rank, " never came to call #", number,
               " of group ", title_, ", ", notes_.words(number), ": ", last_call_of(*other.board));
  }
  return text.empty() ? text : text + guard_->awaited();
}

}  // namespace intarsia
