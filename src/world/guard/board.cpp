#include "world/guard/board.h"

#include <algorithm>
#include <chrono>

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

std::string Board::Group::words(std::uint64_t number) const {
  const Text& text = texts_[number % kTexts];
  const std::uint64_t before = text.number.load(std::memory_order_acquire);
  std::string words = read(text.words);
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t after = text.number.load(std::memory_order_relaxed);
  if (before != number + 1 || after != number + 1) return {};
  return words;
}

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
  for (auto& text : group.texts_) text.number.store(0, std::memory_order_release);
  group.calls_.store(0, std::memory_order_release);
}

void Board::note(Group& group, std::uint64_t number, std::uint64_t history,
                 std::string_view words) {
  auto& text = group.texts_[number % kTexts];
  text.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  write(text.words, words);
  text.number.store(number + 1, std::memory_order_release);
  auto& hash = group.hashes_[number % kCalls];
  hash.number.store(0, std::memory_order_relaxed);
  hash.history.store(history, std::memory_order_release);
  hash.number.store(number + 1, std::memory_order_release);
  group.since_.store(std::chrono::steady_clock::now().time_since_epoch().count(),
                     std::memory_order_relaxed);
  last_.store(static_cast<std::uint64_t>(&group - groups_.data()) + 1, std::memory_order_relaxed);
  group.calls_.store(number + 1, std::memory_order_release);
  // Of two ranks that note at the same time, one sees the note of the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
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
  if (in_trouble_.load() != 0) return;
  write(trouble_, trouble);
  in_trouble_.store(1);
}

std::string Board::trouble() const {
  return in_trouble_.load() == 0 ? std::string() : read(trouble_);
}

}  // namespace intarsia
