// Board: what a rank notes of its calls where the other ranks of its host can read it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "world/guard/texts.h"
#include "world/guard/times.h"

namespace intarsia {

/// The last calls of one rank, in memory that starts as zeros and that other processes read while
/// the rank writes. What is being replaced is taken for absent, never for something else.
///
/// THREADS: those of one group write one at a time; any may read.
class Board {
 public:
  static constexpr std::size_t kGroups = 128;   // more than these at a time are not noted
  static constexpr std::size_t kCalls = 64;     // of a group, of which the hash is kept
  static constexpr std::size_t kMarks = 16;     // of a group: every 64th call, kept for longer
  static constexpr std::size_t kValues = 1024;  // that must be equal on several ranks
  static constexpr std::size_t kHad = 512;      // values that were had

  /// The calls of this rank over one group.
  class Group {
   public:
    /// How many calls it came to: those it made, and one that it may be about to make.
    std::uint64_t reached() const { return reached_.load(std::memory_order_acquire); }
    /// How many calls were made.
    std::uint64_t calls() const { return calls_.load(std::memory_order_acquire); }
    /// The hash after a call; unset if it was not made yet, or too long ago.
    std::optional<std::uint64_t> history(std::uint64_t number) const;
    /// The line of the user's program that waits for a call; empty if it is not known.
    std::string line(std::uint64_t number) const;
    std::string name() const { return name_.data(); }
    /// When the last call was made, in nanoseconds of the steady clock, which is one for a host.
    std::int64_t since() const { return since_.load(std::memory_order_relaxed); }

   private:
    friend class Board;
    struct Hash {
      std::atomic<std::uint64_t> number;  // counted from 1, so that zero is none
      std::atomic<std::uint64_t> history;
      std::atomic<std::uint64_t> text;

      /// The history and the text; unset if it is of another call.
      std::optional<std::pair<std::uint64_t, std::uint64_t>> read(std::uint64_t of) const;
      void write(std::uint64_t of, std::uint64_t hash, std::uint64_t words);
    };
    std::atomic<std::uint64_t> reached_;
    std::atomic<std::uint64_t> calls_;
    std::atomic<std::int64_t> since_;
    std::array<char, 112> name_;
    std::array<Hash, kCalls> hashes_;
    std::array<Hash, kMarks> marks_;
    Note line_;
  };

  /// A group that is noted from now on; null if there are too many. REQUIRES: one thread at a time.
  Group* add(std::uint64_t key, std::string_view name);
  void remove(Group& group);
  /// Notes that the rank comes to a call, and has done all that is before it.
  void note_reached(Group& group, std::uint64_t number) {
    group.reached_.store(number + 1, std::memory_order_release);
  }
  /// Notes a call. `history`: a hash of it and of all calls before it. `text`: a hash of its words,
  /// which are noted apart, and once for all calls of the same words.
  void note(Group& group, std::uint64_t number, std::uint64_t history, std::uint64_t text);
  /// The same with its words.
  void note(Group& group, std::uint64_t number, std::uint64_t history, std::string_view words);
  /// The words of calls, of all groups.
  Texts& texts() { return texts_; }
  /// A call in words; empty if it was not made yet, or too long ago.
  std::string words(const Group& group, std::uint64_t number) const;
  /// Notes when the last call was made, where that was not now.
  void note_since(Group& group, std::int64_t since) {
    group.since_.store(since, std::memory_order_relaxed);
  }
  /// Notes which line of the user's program waits for a call.
  void note_line(Group& group, std::uint64_t number, std::string_view line);
  /// Notes a value that must be equal on other ranks. It may take the place of another one.
  void note_value(std::uint64_t key, std::uint64_t hash);
  /// Notes that the rank had a value of a kind. The last `kHad` are kept.
  void note_had(std::uint64_t kind, std::uint64_t hash);
  bool had(std::uint64_t kind, std::optional<std::uint64_t> hash = std::nullopt) const;
  /// The value of a key; unset if none was noted, or another took its place.
  std::optional<std::uint64_t> value(std::uint64_t key) const;

  /// The group of a key; null if this rank has none. `place`: where to look first; becomes where it
  /// is.
  const Group* find(std::uint64_t key, std::size_t& place) const;
  /// The group at a place, whichever that is.
  const Group& at(std::size_t place) const { return groups_[place]; }
  Group& at(std::size_t place) { return groups_[place]; }
  /// The same, if it is one that is noted; else null.
  const Group* group_at(std::size_t place) const {
    return keys_[place].load(std::memory_order_acquire) == 0 ? nullptr : &groups_[place];
  }
  std::uint64_t key_at(std::size_t place) const {
    return keys_[place].load(std::memory_order_acquire);
  }
  /// The group of the last call; null before the first.
  const Group* last() const;

  /// What went wrong on this rank; empty while nothing did. Only the first counts.
  void tell(std::string_view trouble);
  std::string trouble() const;
  bool in_trouble() const { return in_trouble_.load(std::memory_order_acquire) != 0; }

  /// Whose board it is. Written once, before others see it.
  void sign(std::int64_t rank, std::int64_t size, std::int64_t process, std::uint64_t job);
  bool is_signed() const { return mark_ == kMark; }
  std::int64_t rank() const { return rank_; }
  std::int64_t size() const { return size_; }
  std::int64_t process() const { return process_; }
  /// The same for all ranks of a guard, and for no others.
  std::uint64_t job() const { return job_; }
  /// The last error that nobody caught, in the words of the program; empty if there was none.
  void note_error(std::string_view error);
  std::string error() const;
  /// Where the program is while it makes no call: a line, and when it was there.
  void note_stay(std::string_view line, std::int64_t now);
  std::string stay() const;
  std::int64_t stayed_at() const { return stayed_at_.load(std::memory_order_relaxed); }
  /// When the rank last made a call or began a phase, in nanoseconds of the steady clock; 0 if it
  /// never did.
  std::int64_t last_news() const;
  Times& times() { return times_; }
  const Times& times() const { return times_; }

 private:
  struct Value {
    std::atomic<std::uint64_t> key;
    std::atomic<std::uint64_t> hash;
  };
  static constexpr std::uint64_t kMark = 0x1a7a2511'00000000 + kGroups;  // a board of this build
  // Who reads a board from outside begins here.
  std::uint64_t mark_;
  std::int64_t rank_;
  std::int64_t size_;
  std::int64_t process_;
  std::uint64_t job_;
  // Apart from the groups, so that looking for one reads little.
  std::array<std::atomic<std::uint64_t>, kGroups> keys_;
  std::atomic<std::uint64_t> last_;  // its place, counted from 1
  std::atomic<std::uint32_t> in_trouble_;
  std::array<char, 1500> trouble_;
  Note error_;
  Note stay_;
  std::atomic<std::int64_t> stayed_at_;
  Times times_;
  std::array<Value, kValues> values_;
  std::atomic<std::uint64_t> had_so_far_;
  std::array<Value, kHad> had_;
  Texts texts_;
  std::array<Group, kGroups> groups_;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace intarsia
