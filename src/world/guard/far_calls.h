// FarCalls: whether the calls of a group are those of other hosts, where nobody waits for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "world/guard/board.h"

namespace intarsia {

/// One member of each host compares, from time to time. The store has one key for the group, with
/// the number and the hash of a call. Who finds one that it has made itself compares the two, and
/// puts a later call in its place if they agree: the hash covers all calls before, so that ranks
/// need not compare the same ones.
///
/// THREADS: one at a time.
class FarCalls {
 public:
  /// `notes`: the calls of this rank.
  FarCalls(std::string key, const Board::Group& notes) : key_(std::move(key)), notes_(notes) {}

  /// The number of a call that another host made otherwise, or after one that it did; unset if none
  /// was found. Sends nothing if this rank has made no call since.
  std::optional<std::uint64_t> compare(c10d::Store& store);

 private:
  struct Call {
    std::uint64_t number = 0;
    std::uint64_t history = 0;

    std::string text() const;
    static Call parse(const std::string& text);
  };
  /// A late call of this rank, which the others still know when they read of it.
  std::optional<Call> call_to_tell(std::uint64_t calls) const;
  bool differs(const Call& told) const;

  std::string key_;
  const Board::Group& notes_;
  std::optional<Call> pending_;  // one that this rank had not made yet
  std::uint64_t calls_ = 0;      // that were made when it last compared
};

}  // namespace intarsia
