// Texts that a rank writes where others read them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace intarsia {

/// Writes a text that may be too long, with a zero behind it.
template <std::size_t N>
void write_text(std::array<char, N>& to, std::string_view text) {
  to[text.copy(to.data(), N - 1)] = '\0';
}

template <std::size_t N>
std::string read_text(const std::array<char, N>& from) {
  std::size_t length = 0;
  while (length < N && from[length] != '\0') ++length;
  return {from.data(), length};
}

/// A text that belongs to a number, such as that of a call, in memory that starts as zeros. It is
/// written before its number and read between two looks at it, so that one that is being replaced
/// is taken for absent, never for another.
class Note {
 public:
  /// Empty if it belongs to another number, or is being written.
  std::string read(std::uint64_t number) const {
    const std::uint64_t begun = begun_.load(std::memory_order_acquire);
    const std::uint64_t before = number_.load(std::memory_order_acquire);
    std::string out = read_text(text_);
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint64_t after = number_.load(std::memory_order_relaxed);
    if (before != number + 1 || after != number + 1) return {};
    return begun_.load(std::memory_order_relaxed) == begun ? out : std::string();
  }
  /// Does nothing while another thread writes.
  void write(std::uint64_t number, std::string_view text) {
    std::uint64_t seen = number_.load(std::memory_order_relaxed);
    if (seen == kBusy || !number_.compare_exchange_strong(seen, kBusy)) return;
    begun_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    write_text(text_, text);
    number_.store(number + 1, std::memory_order_release);
  }
  bool is_of(std::uint64_t number) const {
    return number_.load(std::memory_order_relaxed) == number + 1;
  }
  bool is_empty() const { return number_.load(std::memory_order_relaxed) == 0; }
  void clear() { number_.store(0, std::memory_order_release); }

 private:
  static constexpr std::uint64_t kBusy = ~std::uint64_t{0};
  std::atomic<std::uint64_t> number_;  // counted from 1, so that zero is none
  std::atomic<std::uint64_t> begun_;   // how often it was written: a text may come back
  std::array<char, 240> text_;
};

/// Texts by a hash of them. One may take the place of another, which is then absent.
class Texts {
 public:
  static constexpr std::size_t kPlaces = 1024;

  bool knows(std::uint64_t hash) const {
    const auto [first, second] = places_of(hash);
    return notes_[first].is_of(hash) || notes_[second].is_of(hash);
  }
  /// REQUIRES: a hash below 2^63.
  void note(std::uint64_t hash, std::string_view text) {
    const auto [first, second] = places_of(hash);
    notes_[notes_[first].is_empty() ? first : second].write(hash, text);
  }
  /// Empty if it is absent.
  std::string read(std::uint64_t hash) const {
    const auto [first, second] = places_of(hash);
    std::string text = notes_[first].read(hash);
    return text.empty() ? notes_[second].read(hash) : text;
  }

 private:
  /// The two places where a text may be.
  static std::pair<std::size_t, std::size_t> places_of(std::uint64_t hash) {
    return {hash % kPlaces, hash / kPlaces % kPlaces};
  }

  std::array<Note, kPlaces> notes_;
};

}  // namespace intarsia
