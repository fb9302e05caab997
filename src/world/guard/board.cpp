#include "world/guard/board.h"

#include <algorithm>

namespace intarsia {
namespace {

/// Writes a text that may be too long, with a zero behind it.
template <std::size_t N>
void write(std::array<char, N>& to, std::string_view text) {
  to[text.copy(to.data(), N - 1)] = '\0';
}

template <std::size_t N>
std::string read(const std::array<char, N>& from) {
  return {from.begin(), std::find(from.begin(), from.end(), '\0')};
}

}  // namespace

std::optional<std::uint64_t> Board::Group::history(std::uint64_t number) const {
  const Hash& hash = hashes_[number % kCalls];
  const std::uint64_t before = hash.number.load(std::memory_order_acquire);
  const std::uint64_t history = hash.history.load(std::memory_order_acquire);
  const std::uint64_t after = hash.number.load(std::memory_order_acquire);
  if (before != number + 1 || after != number + 1) return std::nullopt;
  return history;
}

std::string Board::Note::read(std::uint64_t number) const {
  const std::uint64_t before = number_.load(std::memory_order_acquire);
  std::string out = intarsia::read(text_);
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t after = number_.load(std::memory_order_relaxed);
  if (before != number + 1 || after != number + 1) return {};
  return out;
}

void Board::Note::write(std::uint64_t number, std::string_view text) {
  number_.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  intarsia::write(text_, text);
  number_.store(number + 1, std::memory_order_release);
}

std::string Board::Group::words(std::uint64_t number) const {
  return texts_[number % kTexts].read(number);
}

std::string Board::Group::line(std::uint64_t number) const { return line_.read(number); }

Board::Group* Board::add(std::uint64_t key, std::string_view name) {
  for (std::size_t i = 0; i < kGroups; ++i) {
    if (keys_[i].load(std::memory_order_relaxed) != 0) continue;
    write(groups_[i].name_, name);
    keys_[i].store(key, std::memory_order_release);
    return &groups_[i];
  }
  return nullptr;
}

void Board::remove(Group& group) {
  const auto place = static_cast<std::size_t>(&group - groups_.data());
  keys_[place].store(0, std::memory_order_release);
  for (auto& hash : group.hashes_) hash.number.store(0, std::memory_order_release);
  for (Note& text : group.texts_) text.clear();
  group.line_.clear();
  group.calls_.store(0, std::memory_order_release);
  group.reached_.store(0, std::memory_order_release);
}

void Board::note(Group& group, std::uint64_t number, std::uint64_t history,
                 std::string_view words) {
  group.texts_[number % kTexts].write(number, words);
  auto& hash = group.hashes_[number % kCalls];
  hash.number.store(0, std::memory_order_relaxed);
  hash.history.store(history, std::memory_order_release);
  hash.number.store(number + 1, std::memory_order_release);
  group.since_.store(nanoseconds_now(), std::memory_order_relaxed);
  last_.store(static_cast<std::uint64_t>(&group - groups_.data()) + 1, std::memory_order_relaxed);
  group.calls_.store(number + 1, std::memory_order_release);
  // Of two ranks that note at the same time, one sees the note of the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Board::note_line(Group& group, std::uint64_t number, std::string_view line) {
  group.line_.write(number, line);
}

void Board::note_value(std::uint64_t key, std::uint64_t hash) {
  Value& value = values_[key % kValues];
  value.key.store(0, std::memory_order_relaxed);
  value.hash.store(hash, std::memory_order_release);
  value.key.store(key, std::memory_order_release);
  // As with calls: of two ranks that note at the same time, one sees the note of the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Board::note_had(std::uint64_t kind, std::uint64_t hash) {
  const std::uint64_t number = had_so_far_.fetch_add(1, std::memory_order_relaxed);
  Value& value = had_[number % kHad];
  value.key.store(0, std::memory_order_relaxed);
  value.hash.store(hash, std::memory_order_release);
  value.key.store(kind, std::memory_order_release);
}

bool Board::had(std::uint64_t kind, std::optional<std::uint64_t> hash) const {
  return std::any_of(had_.begin(), had_.end(), [&](const Value& value) {
    return value.key.load(std::memory_order_acquire) == kind &&
           (!hash || value.hash.load(std::memory_order_acquire) == *hash);
  });
}

std::optional<std::uint64_t> Board::value(std::uint64_t key) const {
  const Value& value = values_[key % kValues];
  const std::uint64_t before = value.key.load(std::memory_order_acquire);
  const std::uint64_t hash = value.hash.load(std::memory_order_acquire);
  const std::uint64_t after = value.key.load(std::memory_order_acquire);
  if (before != key || after != key) return std::nullopt;
  return hash;
}

const Board::Group* Board::find(std::uint64_t key, std::size_t& place) const {
  if (keys_[place].load(std::memory_order_acquire) == key) return &groups_[place];
  for (std::size_t i = 0; i < kGroups; ++i) {
    if (keys_[i].load(std::memory_order_acquire) != key) continue;
    place = i;
    return &groups_[i];
  }
  return nullptr;
}

const Board::Group* Board::last() const {
  const std::uint64_t place = last_.load(std::memory_order_acquire);
  return place == 0 ? nullptr : &groups_[place - 1];
}

void Board::tell(std::string_view trouble) {
  if (in_trouble()) return;
  write(trouble_, trouble);
  in_trouble_.store(1);
}

std::string Board::trouble() const { return in_trouble() ? read(trouble_) : std::string(); }

void Board::sign(std::int64_t rank, std::int64_t size, std::int64_t process, std::uint64_t job) {
  rank_ = rank;
  size_ = size;
  process_ = process;
  job_ = job;
  mark_ = kMark;
}

void Board::note_error(std::string_view error) { error_.write(0, error); }

std::string Board::error() const { return error_.read(0); }

void Board::note_stay(std::string_view line, std::int64_t now) {
  stay_.write(0, line);
  stayed_at_.store(now, std::memory_order_relaxed);
}

std::string Board::stay() const { return stay_.read(0); }

std::int64_t Board::last_news() const {
  const Group* group = last();
  return std::max(times_.since(), group == nullptr ? 0 : group->since());
}

}  // namespace intarsia
