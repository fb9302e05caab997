#include "world/guard/board.h"

#include <algorithm>

#include "base/hash.h"

namespace intarsia {

std::optional<std::pair<std::uint64_t, std::uint64_t>> Board::Group::Hash::read(
    std::uint64_t of) const {
  const std::uint64_t before = number.load(std::memory_order_acquire);
  const std::uint64_t hash = history.load(std::memory_order_acquire);
  const std::uint64_t words = text.load(std::memory_order_acquire);
  const std::uint64_t after = number.load(std::memory_order_acquire);
  if (before != of + 1 || after != of + 1) return std::nullopt;
  return std::pair(hash, words);
}

void Board::Group::Hash::write(std::uint64_t of, std::uint64_t hash, std::uint64_t words) {
  number.store(0, std::memory_order_relaxed);
  history.store(hash, std::memory_order_release);
  text.store(words, std::memory_order_release);
  number.store(of + 1, std::memory_order_release);
}

std::optional<std::uint64_t> Board::Group::history(std::uint64_t number) const {
  auto noted = hashes_[number % kCalls].read(number);
  if (!noted && number % kCalls == 0) noted = marks_[number / kCalls % kMarks].read(number);
  return noted ? std::optional(noted->first) : std::nullopt;
}

std::string Board::Group::line(std::uint64_t number) const { return line_.read(number); }

Board::Group* Board::add(std::uint64_t key, std::string_view name) {
  for (std::size_t i = 0; i < kGroups; ++i) {
    if (keys_[i].load(std::memory_order_relaxed) != 0) continue;
    write_text(groups_[i].name_, name);
    keys_[i].store(key, std::memory_order_release);
    return &groups_[i];
  }
  return nullptr;
}

void Board::remove(Group& group) {
  const auto place = static_cast<std::size_t>(&group - groups_.data());
  keys_[place].store(0, std::memory_order_release);
  for (auto& hash : group.hashes_) hash.number.store(0, std::memory_order_release);
  for (auto& mark : group.marks_) mark.number.store(0, std::memory_order_release);
  group.line_.clear();
  group.calls_.store(0, std::memory_order_release);
  group.reached_.store(0, std::memory_order_release);
}

void Board::note(Group& group, std::uint64_t number, std::uint64_t history, std::uint64_t text) {
  group.hashes_[number % kCalls].write(number, history, text);
  if (number % kCalls == 0) group.marks_[number / kCalls % kMarks].write(number, history, text);
  group.since_.store(nanoseconds_now(), std::memory_order_relaxed);
  last_.store(static_cast<std::uint64_t>(&group - groups_.data()) + 1, std::memory_order_relaxed);
  group.calls_.store(number + 1, std::memory_order_release);
  // Of two ranks that note at the same time, one sees the note of the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Board::note(Group& group, std::uint64_t number, std::uint64_t history,
                 std::string_view words) {
  const std::uint64_t text = hash_text(words) >> 1;
  if (!texts_.knows(text)) texts_.note(text, words);
  note(group, number, history, text);
}

std::string Board::words(const Group& group, std::uint64_t number) const {
  const auto noted = group.hashes_[number % kCalls].read(number);
  return noted ? texts_.read(noted->second) : std::string();
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
  write_text(trouble_, trouble);
  in_trouble_.store(1);
}

std::string Board::trouble() const { return in_trouble() ? read_text(trouble_) : std::string(); }

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
