#include "world/guard/guard.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
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
#include "world/transport/forks.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "guard";
constexpr std::chrono::milliseconds kPatience{500};      // once something is wrong
constexpr std::chrono::milliseconds kFarPatience{2500};  // where other hosts are asked
constexpr std::chrono::milliseconds kRound{250};         // of the thread that answers them
constexpr std::chrono::milliseconds kBreath{10};

bool is_off() { return guard_setting("INTARSIA_GUARD") == "off"; }

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

std::string words_of(const GuardedCall& call) {
  std::string words(call.what);
  if (call.bytes != 0) words += concat(", ", call.bytes, " bytes");
  if (!call.where.empty()) words += concat(" in ", call.where);
  return words;
}

}  // namespace

Guard::Guard(std::unique_ptr<Boards> boards, std::uint64_t job) : boards_(std::move(boards)) {
  mine().sign(boards_->rank(), boards_->size(), ::getpid(), job);
  BoardsOfGuard of_guard{.mine = &mine()};
  for (int rank = 0; rank < boards_->size(); ++rank) {
    if (boards_->is_near(rank)) of_guard.all.push_back(board(rank));
  }
  Program::instance().add(std::move(of_guard));
  if (boards_->is_one_host()) return;
  thread_ = std::make_unique<std::thread>([this] { look_around(); });
}

Guard::~Guard() {
  // The thread of a parent is not in its fork, and the boards are the parent's.
  if (forks_ != forks()) {
    (void)thread_.release();
    (void)boards_.release();
    return;
  }
  end_thread();
  Program::instance().remove(mine());
}

void Guard::end_thread() {
  if (!thread_) return;
  {
    const std::scoped_lock lock(far_mutex_);
    ends_ = true;
  }
  ending_.notify_all();
  thread_->join();
  thread_.reset();
}

std::shared_ptr<Guard> Guard::make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   std::chrono::milliseconds timeout, std::string_view host) {
  if (size == 1 || !store) return nullptr;
  const auto own = c10::make_intrusive<c10d::PrefixStore>("intarsia/guard", store);
  const std::uint64_t job = agree_on_job(*own, rank);
  if (job == 0) return nullptr;
  auto boards = Boards::make(own, rank, size, {.timeout = timeout, .host = host});
  return boards ? std::make_shared<Guard>(std::move(boards), job) : nullptr;
}

void Guard::look_around() {
  std::unique_lock lock(far_mutex_);
  const auto attempt = [](const auto& does) {
    try {
      does();
    } catch (const std::exception&) {
      // The store does not answer; perhaps it has ended, with the rank that keeps it.
    }
  };
  while (!ending_.wait_for(lock, kRound, [this] { return ends_; })) {
    attempt([this] { boards_->answer(); });
    // Each for itself: a rank may wait for what one of them finds out.
    for (GuardedGroup* group : far_groups_) attempt([group] { group->compare_far(); });
  }
}

std::shared_ptr<GuardedGroup> Guard::join(const std::string& name,
                                          std::vector<std::int64_t> members, std::int64_t before) {
  std::shared_ptr<GuardedGroup> group;
  {
    const std::scoped_lock lock(mutex_);
    const std::string title = before == 0 ? name : concat(name, " #", before);
    Board::Group* notes = mine().add(hash_text(title), title);
    if (notes == nullptr) return nullptr;
    group =
        std::make_shared<GuardedGroup>(shared_from_this(), name, title, std::move(members), *notes);
    Clock& clock = clocks_[name];
    clock.group = group.get();
    clock.left = false;
  }
  if (!group->members_.far().empty()) {
    group->members_.announce();
    const std::scoped_lock lock(far_mutex_);
    far_groups_.push_back(group.get());
  }
  return group;
}

std::uint64_t Guard::Place::key() const { return hash_mix(kind, time) | 1; }  // zero is none

std::optional<Guard::Place> Guard::place_of(const std::string& group, std::string_view what) {
  const std::scoped_lock lock(mutex_);
  Clock& clock = clocks_[group];
  if (clock.left) return std::nullopt;
  const bool is_joined = clock.group != nullptr;
  const std::uint64_t calls = is_joined ? clock.group->notes_.calls() : 0;
  const std::uint64_t place =
      hash_mix(is_joined ? clock.group->members_.key() : hash_text(group), calls);
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
    if (!boards_->is_near(rank)) continue;
    const auto theirs = board(rank)->value(place->key());
    if (!theirs || *theirs == hash) continue;
    const std::string line = current_line();
    Doubt doubt{
        rank,
        place->kind,
        hash,
        *theirs,
        boards_->near(members),
        concat(what, " differs between rank ", boards_->rank(), " and rank ", rank, " of group ",
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
      if (!boards_->why_gone(rank).empty()) return;
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
      return rank == boards_->rank() || board(rank)->value(place->key()).has_value();
    });
  }
  for (const std::int64_t rank : ranks) {
    const std::string trouble = board(rank)->trouble();
    if (!trouble.empty()) raise(trouble);
  }
}

std::string Guard::why_gone(std::int64_t rank) const {
  const std::string why = boards_->why_gone(rank);
  const std::string error = why.empty() ? std::string() : board(rank)->error();
  return error.empty() ? why : concat(why, "; its last error was: ", error);
}

void Guard::raise(const std::string& trouble) {
  mine().tell(trouble);
  if (guard_setting("INTARSIA_GUARD_ACTION") == "abort") {
    std::cerr << concat("[guard] rank ", boards_->rank(), " ends: ", trouble, '\n') << std::flush;
    std::abort();
  }
  fail<GuardError>(kWhere, trouble);
}

void Guard::close(std::string_view why) {
  if (forks_ != forks()) return;  // the boards are those of its parent
  end_thread();
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  boards_->close(why);
}

GuardedGroup::GuardedGroup(std::shared_ptr<Guard> guard, std::string name, std::string title,
                           std::vector<std::int64_t> members, Board::Group& notes)
    : guard_(std::move(guard)),
      name_(std::move(name)),
      members_(*guard_->boards_, std::move(title), std::move(members), notes),
      mine_(guard_->mine()),
      notes_(notes),
      far_calls_(concat("calls/", members_.key()), notes) {}

GuardedGroup::~GuardedGroup() {
  if (!members_.far().empty()) {
    const std::scoped_lock lock(guard_->far_mutex_);
    std::erase(guard_->far_groups_, this);
  }
  const std::scoped_lock lock(guard_->mutex_);
  Guard::Clock& clock = guard_->clocks_[name_];
  if (clock.group == this) {
    guard_->doubts_ -= clock.doubts.size();
    clock = {.left = true};
  }
  // The notes of a rank in trouble stay: others may be about to read what it did.
  if (!guard_->closed_ && !mine_.in_trouble()) guard_->mine().remove(notes_);
}

std::shared_ptr<GuardedGroup> GuardedGroup::messages(std::size_t from, std::size_t to,
                                                     int tag) const {
  const std::int64_t sends = members_.ranks().at(from);
  const std::int64_t receives = members_.ranks().at(to);
  std::string name =
      concat("of messages from rank ", sends, " to rank ", receives, " in ", members_.title());
  if (tag != 0) name += concat(", tag ", tag);
  return guard_->join(name, {sends, receives});
}

void GuardedGroup::settle_doubts(std::uint64_t next) const {
  // The call could not end before the others come to it. Where they do not for long, it is made,
  // and the next one decides.
  constexpr std::chrono::milliseconds kLong = std::chrono::seconds(5);
  guard_->settle_doubts(members_.near_ranks(), kLong, [&](std::int64_t rank) {
    std::size_t place = 0;
    const Board::Group* notes = guard_->board(rank)->find(members_.key(), place);
    return notes != nullptr && notes->reached() > next;
  });
}

std::uint64_t GuardedGroup::enter(const GuardedCall& call) {
  if (is_suspect_.load(std::memory_order_relaxed)) wait_for_verdict();
  // It would meet a call that another member has given up.
  if (mine_.in_trouble()) guard_->raise(mine_.trouble());
  const std::uint64_t next = notes_.calls();
  mine_.note_reached(notes_, next);
  if (guard_->doubts_.load(std::memory_order_relaxed) != 0) settle_doubts(next);
  const std::uint64_t hash = hash_mix(hash_text(call.what) + static_cast<std::uint64_t>(call.bytes),
                                      hash_text(call.where));
  const std::uint64_t text = hash >> 1;
  std::unique_lock lock(mutex_);
  const std::uint64_t number = calls_++;
  history_ = hash_mix(history_, hash);
  // Most calls were made before.
  if (!mine_.texts().knows(text)) mine_.texts().note(text, words_of(call));
  mine_.note(notes_, number, history_, text);
  lock.unlock();
  compare(number);
  return number;
}

void GuardedGroup::compare(std::uint64_t number) const {
  if (members_.differs(number, members_.near())) raise_disagreement(number);
}

void GuardedGroup::raise_disagreement(std::uint64_t number) const {
  note_line(number, current_line());
  wait_for_others(members_.first_difference(number));  // so that the sentence says who is alone
  guard_->raise(members_.disagreement(number));
}

void GuardedGroup::look(std::uint64_t number) const {
  if (mine_.in_trouble()) guard_->raise(mine_.trouble());
  members_.ask(number);
  if (members_.differs(number, members_.others())) raise_disagreement(number);
  const std::string absent = members_.missing(number);
  for (const auto& other : members_.others()) {
    // Asked before the notes, so that a call it made before it ended is not missed.
    const std::string gone = guard_->why_gone(other.rank);
    if (members_.has_made(other, number)) {
      // A rank may end once all it has to send is sent, but not die: those who are still to come
      // would wait for it.
      if (!absent.empty() && guard_->boards_->has_died(other.rank)) {
        guard_->raise(concat(gone, " in that call; ", absent));
      }
      continue;
    }
    const std::string trouble = other.board->trouble();
    if (!trouble.empty()) guard_->raise(trouble);
    if (!gone.empty()) guard_->raise(concat(gone, "; ", members_.missing(number)));
  }
}

void GuardedGroup::note_line(std::uint64_t number, std::string_view line) const {
  if (!line.empty()) mine_.note_line(notes_, number, line);
}

void GuardedGroup::meet(std::chrono::milliseconds timeout) const {
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& other : members_.others()) {
    while (!members_.has_joined(other)) {
      const std::string trouble = other.board->trouble();
      if (!trouble.empty()) guard_->raise(trouble);
      const std::string gone = guard_->why_gone(other.rank);
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (gone.empty() && waited < timeout) {
        std::this_thread::sleep_for(waited < kBreath ? std::chrono::microseconds(50) : kBreath / 4);
        guard_->boards_->ask({other.rank});
        continue;
      }
      if (members_.has_joined(other)) break;  // it came before it went
      const std::string why = !gone.empty() ? gone : concat("waited ", timeout.count(), " ms");
      guard_->raise(concat(why, "; rank ", other.rank, " never came to make group ",
                           members_.title(), ", which all its members use: ",
                           guard_->boards_->last_call(other.rank), guard_->boards_->awaited()));
    }
  }
}

void GuardedGroup::explain(std::uint64_t number) const {
  // A process closes its connections a moment before it is known to have ended.
  const auto begin = std::chrono::steady_clock::now();
  do {
    members_.ask();
    look(number);
    const std::string absent = missing(number);
    for (const auto& other : members_.others()) {
      const std::string gone = guard_->why_gone(other.rank);
      const std::string trouble = other.board->trouble();
      if (!trouble.empty()) guard_->raise(trouble);
      // Where one never came, those who came have ended for the same reason as this one will.
      if (!gone.empty() && absent.empty())
        guard_->raise(concat(gone, "; ", guard_->boards_->last_call(other.rank)));
    }
    std::this_thread::sleep_for(kBreath);
  } while (std::chrono::steady_clock::now() - begin < patience());
  // This rank ends now: the others are not to take it for the one who is missing.
  if (const std::string absent = missing(number); !absent.empty()) mine_.tell(absent);
}

void GuardedGroup::wait_for_others(std::uint64_t number) const {
  const auto begin = std::chrono::steady_clock::now();
  const bool with_lines = !notes_.line(number).empty();
  const auto is_here = [&](const GroupMembers::Member& other) {
    return members_.has_made(other, number) &&
           (!with_lines || !members_.notes_of(other)->line(number).empty());
  };
  while (!std::all_of(members_.others().begin(), members_.others().end(), is_here) &&
         std::chrono::steady_clock::now() - begin < patience()) {
    std::this_thread::sleep_for(kBreath);
    members_.ask();
  }
}

void GuardedGroup::give_notice(std::uint64_t number, std::chrono::seconds waited) const {
  const std::vector<std::int64_t> waiting = members_.waiting_in(number);
  if (waiting.front() != guard_->boards_->rank()) return;
  const std::string absent = missing(number);
  const std::string line = notes_.line(number);
  std::cerr << concat("[guard] ", ranks_text(waiting), waiting.size() == 1 ? " waits" : " wait",
                      " since ", waited.count(), " s", line.empty() ? "" : " at ", line, ": ",
                      absent.empty() ? concat("all have made call #", number, " of group ",
                                              members_.title(), ", ", mine_.words(notes_, number),
                                              ", and the backend has not ended it")
                                     : absent,
                      '\n')
            << std::flush;
}

// ---- members on other hosts ---------------------------------------------------------------------

std::chrono::milliseconds GuardedGroup::patience() const {
  return members_.far().empty() ? kPatience : kFarPatience;
}

void GuardedGroup::compare_far() {
  if (is_suspect_) return look_at_suspect();
  if (members_.near_ranks().front() != guard_->boards_->rank()) return;  // who does so for all
  const auto differs = far_calls_.compare(*guard_->boards_->store());
  if (!differs) return;
  suspect_ = {*differs};
  is_suspect_ = true;
}

void GuardedGroup::look_at_suspect() {
  constexpr int kRounds = static_cast<int>(kFarPatience / kRound);
  if (mine_.in_trouble()) return;  // it was told already
  members_.ask();
  const auto others = members_.others();
  const bool all_here = std::all_of(others.begin(), others.end(), [this](const auto& other) {
    return members_.has_made(other, suspect_.number);
  });
  if (all_here || ++suspect_.rounds > kRounds) {
    mine_.tell(members_.disagreement(suspect_.number));
  }
}

void GuardedGroup::wait_for_verdict() const {
  const auto end = std::chrono::steady_clock::now() + 2 * kFarPatience;
  while (!mine_.in_trouble() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kBreath);
  }
}

}  // namespace intarsia
