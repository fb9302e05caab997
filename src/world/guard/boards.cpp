#include "world/guard/boards.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/guard/board_message.h"
#include "world/guard/report.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::uint8_t>;

constexpr milliseconds kFirstPause{200};
constexpr milliseconds kLongestPause = std::chrono::seconds(4);
constexpr milliseconds kStorePatience = std::chrono::seconds(5);
constexpr const char* kQuestions = "questions";
constexpr int kRounds = 0;  // a counter of SymmetricMemory

/// A file in INTARSIA_GUARD_DIR, so that the board is still there when all processes have ended;
/// empty if that is not set, or no folder that can be written to.
std::string file_of_board(int rank) {
  const std::string folder(guard_setting("INTARSIA_GUARD_DIR"));
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

std::string host_key(int rank) { return concat("host/", rank); }
std::string answer_key(std::size_t host) { return concat("answer/", host); }

/// Unset if there is none.
std::optional<Bytes> read(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  return store.get(key);
}

/// Which host this is. A process that cannot know is a host for itself.
std::string host_of_this_rank(int rank, std::string_view part) {
  try {
    return concat(host_identity(), '/', part);
  } catch (const Error&) {
    return concat("rank ", rank);
  }
}

std::vector<std::string> hosts_of_ranks(c10d::Store& store, int rank, int size,
                                        const BoardsOptions& options) {
  const auto part = options.host.empty() ? guard_setting("INTARSIA_GUARD_HOST") : options.host;
  store.set(host_key(rank), host_of_this_rank(rank, part));
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(host_key(r));
  try {
    store.wait(keys, options.timeout);
  } catch (const std::exception& error) {
    fail<WorldError>("guard", "waited ", options.timeout.count(),
                     " ms for ranks that did not come (", error.what(), ")");
  }
  std::vector<std::string> hosts;
  for (const Bytes& text : store.multiGet(keys)) hosts.emplace_back(text.begin(), text.end());
  return hosts;
}

/// Whether all ranks say so. COLLECTIVE: all ranks.
bool do_all(c10d::Store& store, bool mine, int size, milliseconds timeout) {
  if (!mine) store.add("failed", 1);
  if (store.add("came", 1) == size) store.set("all came", std::string("1"));
  store.wait({"all came"}, timeout);
  return store.add("failed", 0) == 0;
}

}  // namespace

std::string_view guard_setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

Boards::Boards(int rank, const std::vector<std::string>& hosts)
    : rank_(rank), seats_(hosts.size()) {
  std::vector<std::string> names;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    const auto found = std::find(names.begin(), names.end(), hosts[r]);
    seats_[r].host = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) {
      names.push_back(hosts[r]);
      hosts_.emplace_back();
    }
    Host& host = hosts_[seats_[r].host];
    seats_[r].place = static_cast<int>(host.ranks.size());
    host.ranks.push_back(static_cast<std::int64_t>(r));
  }
}

std::unique_ptr<Boards> Boards::make(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int size, const BoardsOptions& options) {
  std::unique_ptr<Boards> boards;
  std::unique_ptr<SymmetricMemory> memory;
  std::string why = "ranks of another host cannot share memory";
  try {
    boards.reset(new Boards(rank, hosts_of_ranks(*store, rank, size, options)));
    memory = boards->make_near(store, options);
  } catch (const Error& error) {
    // All ranks of the host come here: who cannot reach a board ends its own, for which the others
    // wait.
    why = error.what();
  }
  bool all_can = memory != nullptr;
  if (boards && !boards->is_one_host()) all_can = do_all(*store, all_can, size, options.timeout);
  if (!all_can) {
    TORCH_WARN_ONCE("the calls of ranks are not compared: ", why);
    return nullptr;
  }
  boards->sit_down(std::move(memory), boards->is_one_host() ? nullptr : store->clone());
  return boards;
}

std::unique_ptr<SymmetricMemory> Boards::make_near(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const BoardsOptions& options) const {
  const Seat& mine = seat(rank_);
  const std::vector<std::int64_t>& near = hosts_[mine.host].ranks;
  auto memory =
      make_host_memory(c10::make_intrusive<c10d::PrefixStore>(concat("host ", mine.host), store),
                       mine.place, static_cast<int>(near.size()), sizeof(Board),
                       {.timeout = options.timeout,
                        .names = near,
                        .host = "this",
                        .label = "intarsia-guard",
                        .file = file_of_board(rank_)});
  memory->reserve(0, sizeof(Board));
  return memory;
}

void Boards::sit_down(std::unique_ptr<SymmetricMemory> near,
                      c10::intrusive_ptr<c10d::Store> store) {
  near_ = std::move(near);
  heard_.resize(hosts_[seat(rank_).host].ranks.size());
  store_ = std::move(store);
  if (store_) store_->setTimeout(kStorePatience);
  for (std::size_t r = 0; r < seats_.size(); ++r) {
    Seat& seat = seats_[r];
    if (is_near(static_cast<std::int64_t>(r))) {
      seat.board = reinterpret_cast<Board*>(near_->at(seat.place));
    } else {
      // Zeros that take up no memory until they are written.
      seat.copy.reset(static_cast<Board*>(std::calloc(1, sizeof(Board))));
      if (!seat.copy) throw std::bad_alloc();
      seat.board = seat.copy.get();
    }
  }
}

std::vector<std::int64_t> Boards::near(const std::vector<std::int64_t>& ranks) const {
  std::vector<std::int64_t> out;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(out),
               [this](std::int64_t rank) { return is_near(rank); });
  return out;
}

std::string Boards::why_gone(std::int64_t rank) const {
  if (is_near(rank)) return near_->why_gone(seat(rank).place);
  const std::scoped_lock lock(mutex_);
  return seat(rank).gone;
}

bool Boards::has_died(std::int64_t rank) const {
  if (is_near(rank)) return near_->has_died(seat(rank).place);
  const std::scoped_lock lock(mutex_);
  return seat(rank).has_died;
}

bool Boards::is_speaker() {
  constexpr std::uint64_t kPatience = 8;  // rounds
  near_->signal(kRounds, ++rounds_);
  for (const std::int64_t rank : hosts_[seat(rank_).host].ranks) {
    if (rank == rank_) return true;
    const int place = seat(rank).place;
    Heard& heard = heard_[static_cast<std::size_t>(place)];
    const std::uint64_t rounds = near_->value(place, kRounds);
    if (rounds != heard.rounds) heard = {rounds, rounds_};
    if (rounds_ - heard.at < kPatience && why_gone(rank).empty()) return false;
  }
  return true;
}

void Boards::answer() {
  if (!is_speaker()) return;
  const std::int64_t asked = store_->add(kQuestions, 0);
  if (asked == answered_) return;
  publish({});
  answered_ = asked;
}

void Boards::publish(std::string_view why) {
  nlohmann::json ranks = nlohmann::json::array();
  const std::size_t host = seat(rank_).host;
  for (const std::int64_t rank : hosts_[host].ranks) {
    const bool is_mine = rank == rank_;
    std::string gone = is_mine ? std::string() : why_gone(rank);
    if (!why.empty() && is_mine) gone = concat("rank ", rank, " has closed: ", why);
    const bool died = !is_mine && has_died(rank);
    // What it noted is read after that: a call that it made before it ended is not missed.
    ranks.push_back(
        {{"gone", gone}, {"died", died}, {"board", nlohmann::json::binary(to_message(*at(rank)))}});
  }
  const std::int64_t number = store_->add("answers", 1);
  store_->set(answer_key(host), nlohmann::json::to_cbor({{"number", number}, {"ranks", ranks}}));
}

void Boards::close(std::string_view why) {
  if (store_) {
    try {
      publish(why);  // there may be nobody who answers later
    } catch (const std::exception&) {
      // The store has ended before.
    }
  }
  near_->close(why);
}

void Boards::take_answer(std::size_t host) {
  const auto bytes = read(*store_, answer_key(host));
  if (!bytes) return;
  const auto message = nlohmann::json::from_cbor(*bytes);
  const auto number = message.at("number").get<std::int64_t>();
  Host& theirs = hosts_[host];
  if (number == theirs.answer) return;
  theirs.answer = number;
  theirs.silent.reset();
  std::size_t place = 0;
  for (const auto& of_rank : message.at("ranks")) {
    Seat& seat = seats_[static_cast<std::size_t>(theirs.ranks.at(place++))];
    seat.gone = of_rank.at("gone").get<std::string>();
    seat.has_died = of_rank.at("died").get<bool>();
    take_message(of_rank.at("board").get_binary(), *seat.board);
  }
}

void Boards::ask(const std::vector<std::int64_t>& ranks) {
  if (!store_) return;
  const auto now = Clock::now();
  const std::scoped_lock lock(mutex_);
  if (now - asked_at_ < pause_) return;
  // Who waits long asks less often.
  const bool is_new = now - asked_at_ > 2 * kLongestPause;
  pause_ = is_new ? kFirstPause : std::min<Clock::duration>(pause_ * 3 / 2, kLongestPause);
  asked_at_ = now;
  std::vector<std::size_t> hosts;
  for (const std::int64_t rank : ranks) {
    const std::size_t host = seat(rank).host;
    if (is_near(rank) || std::find(hosts.begin(), hosts.end(), host) != hosts.end()) continue;
    hosts.push_back(host);
  }
  try {
    for (const std::size_t host : hosts) take_answer(host);
    if (!hosts.empty()) (void)store_->add(kQuestions, 1);
  } catch (const std::exception&) {
    // The store has ended, with the rank that keeps it: nobody answers any more.
  }
  for (const std::size_t host : hosts) {
    if (!hosts_[host].silent) hosts_[host].silent = now;
  }
}

std::string Boards::last_call(std::int64_t rank) const {
  const std::string known = last_call_of(*at(rank));
  if (is_near(rank)) return known;
  constexpr std::chrono::seconds kUsual{5};
  const std::scoped_lock lock(mutex_);
  const Host& host = hosts_[seat(rank).host];
  if (host.answer == 0) return "its host has not answered";
  const auto silent = host.silent ? Clock::now() - *host.silent : Clock::duration();
  if (silent <= kUsual) return known;
  return concat(known, "; its host does not answer since ",
                std::chrono::duration_cast<std::chrono::seconds>(silent).count(), " s");
}

std::string Boards::awaited() const {
  const int me = rank_;
  for (std::size_t place = 0; place < Board::kGroups; ++place) {
    const Board::Group* mine = at(me)->group_at(place);
    if (mine == nullptr) continue;
    std::vector<std::int64_t> waiting;
    std::string words;
    for (int rank = 0; rank < size(); ++rank) {
      std::size_t found = 0;
      const Board& theirs = *at(rank);
      const Board::Group* group = theirs.find(at(me)->key_at(place), found);
      if (rank == me || group == nullptr || group != theirs.last()) continue;
      if (group->calls() <= mine->calls()) continue;
      waiting.push_back(rank);
      words = theirs.words(*group, mine->calls());
    }
    if (waiting.empty()) continue;
    return concat("; ", ranks_text(waiting), waiting.size() == 1 ? " waits" : " wait", " for rank ",
                  me, " in call #", mine->calls(), " of group ", mine->name(),
                  words.empty() ? "" : ", ", words);
  }
  return {};
}

}  // namespace intarsia
