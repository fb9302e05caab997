// Board: what a rank notes of its calls where the other ranks of its host can read it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace intarsia {

/// The last calls of one rank, in memory that starts as zeros and that other processes read while
/// the rank writes. A note is written before its number and read between two looks at it, so that
/// one that is being replaced is taken for absent, never for another.
///
/// THREADS: those of one group write one at a time; any may read.
class Board {
 public:
  static constexpr std::size_t kGroups = 128;  // more than these at a time are not noted
  static constexpr std::size_t kCalls = 64;    // of a group, of which the hash is kept
  static constexpr std::size_t kTexts = 8;     // of a group, of which the words are kept

  /// The calls of this rank over one group.
  class Group {
   public:
    /// How many calls were made.
    std::uint64_t calls() const { return calls_.load(std::memory_order_acquire); }
    /// The hash after a call; unset if it was not made yet, or too long ago.
    std::optional<std::uint64_t> history(std::uint64_t number) const;
    /// A call in words; empty if it was not made yet, or too long ago.
    std::string words(std::uint64_t number) const;
    std::string name() const { return name_.data(); }
    /// When the last call was made, in nanoseconds of the steady clock, which is one for a host.
    std::int64_t since() const { return since_.load(std::memory_order_relaxed); }

   private:
    friend class Board;
    struct Hash {
      std::atomic<std::uint64_t> number;  // counted from 1, so that zero is none
      std::atomic<std::uint64_t> history;
    };
    struct Text {
      std::atomic<std::uint64_t> number;
      std::array<char, 248> words;
    };
    std::atomic<std::uint64_t> calls_;
    std::atomic<std::int64_t> since_;
    std::array<char, 112> name_;
    std::array<Hash, kCalls> hashes_;
    std::array<Text, kTexts> texts_;
  };

  /// A group that is noted from now on; null if there are too many. REQUIRES: one thread at a time.
  Group* add(std::uint64_t key, std::string_view name);
  void remove(Group& group);
  /// Notes a call. `history`: a hash of it and of all calls before it.
  void note(Group& group, std::uint64_t number, std::uint64_t history, std::string_view words);

  /// The group of a key; null if this rank has none. `place`: where to look first; becomes where it
  /// is.
  const Group* find(std::uint64_t key, std::size_t& place) const;
  /// The group at a place, whichever that is.
  const Group& at(std::size_t place) const { return groups_[place]; }
  /// The group of the last call; null before the first.
  const Group* last() const;

  /// What went wrong on this rank; empty while nothing did. Only the first counts.
  void tell(std::string_view trouble);
  std::string trouble() const;

 private:
  // Apart from the groups, so that looking for one reads little.
  std::array<std::atomic<std::uint64_t>, kGroups> keys_;
  std::atomic<std::uint64_t> last_;  // its place, counted from 1
  std::atomic<std::uint32_t> in_trouble_;
  std::array<char, 1500> trouble_;
  std::array<Group, kGroups> groups_;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace intarsia
