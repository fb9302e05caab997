// GroupMembers: the members of a group, and what is known of the calls that they made.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "world/guard/board.h"
#include "world/guard/boards.h"

namespace intarsia {

/// Reads boards, and throws nothing: Guard decides what follows. THREADS: any.
class GroupMembers {
 public:
  /// A member that is not this rank.
  struct Member {
    std::int64_t rank = 0;
    const Board* board = nullptr;
    mutable std::atomic<std::size_t> place = 0;  // of the group on its board, when last seen
  };

  /// `ranks`: of the world, this one among them. `notes`: of this rank.
  GroupMembers(Boards& boards, std::string title, std::vector<std::int64_t> ranks,
               const Board::Group& notes);

  const std::string& title() const { return title_; }
  /// Which group it is on all boards.
  std::uint64_t key() const { return key_; }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }
  /// Those of this host, this one among them.
  const std::vector<std::int64_t>& near_ranks() const { return near_ranks_; }
  std::span<const Member> others() const { return others_; }
  std::span<const Member> near() const { return others().first(near_ranks_.size() - 1); }
  std::span<const Member> far() const { return others().subspan(near_ranks_.size() - 1); }

  /// The calls of a member; null if it has not joined, or that is not known.
  const Board::Group* notes_of(const Member& member) const;
  bool has_made(const Member& member, std::uint64_t number) const;
  /// Whether one of these made another call than this rank did.
  bool differs(std::uint64_t number, std::span<const Member> others) const;
  /// The first call, up to this one, in which a member differs.
  std::uint64_t first_difference(std::uint64_t number) const;
  /// Who makes which call, where they first differ: `ranks disagree about call #7 of group ...`
  std::string disagreement(std::uint64_t number) const;
  /// Who has not made a call, what they did last, and who waits for this rank elsewhere; empty if
  /// all have.
  std::string missing(std::uint64_t number) const;
  /// Who has made a call, in their order.
  std::vector<std::int64_t> waiting_in(std::uint64_t number) const;

  /// Tells those of other hosts that this rank has joined.
  void announce() const;
  bool has_joined(const Member& other) const;
  /// Asks other hosts what their members do, if this rank is the first of its own that waits in a
  /// call.
  void ask(std::uint64_t number) const;
  void ask() const { boards_.ask(ranks_); }

 private:
  std::string joined_key(std::int64_t rank) const;

  Boards& boards_;
  std::string title_;
  std::uint64_t key_;
  std::vector<std::int64_t> ranks_;
  std::vector<std::int64_t> near_ranks_;
  std::int64_t me_;
  std::vector<Member> others_;  // first those of this host
  const Board::Group& notes_;
};

}  // namespace intarsia
