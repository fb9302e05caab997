// Guard: ranks that disagree about their calls are named, before a wrong number is used.
//
// Each rank notes a call on its board before it makes it, and compares it with the notes of the
// other members. Of ranks that disagree the last to come finds it out, makes no call, and tells the
// others, who look while they wait. Nothing is sent and nobody waits for the guard: the boards are
// memory that the processes of one host share. Ranks of other hosts are asked by who waits, and a
// thread compares how far they came from time to time. docs/guard.md says what it finds, and what
// not.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/error.h"
#include "world/guard/board.h"
#include "world/guard/boards.h"
#include "world/guard/far_calls.h"
#include "world/guard/group_members.h"
#include "world/transport/forks.h"

namespace intarsia {

/// A call that all members of a group must make alike.
struct GuardedCall {
  std::string_view what;   ///< must be equal: `all_reduce (sum) of Float [8] P(sum) for aten.item`
  std::int64_t bytes = 0;  ///< must be equal, where ranks hand over equally much; else 0
  std::string_view where = {};  ///< must be equal: the module, if known
};

/// What the guard found.
class GuardError : public WorldError {
 public:
  using WorldError::WorldError;
};

class GuardedGroup;

/// The boards of all ranks of a world. THREADS: any.
class Guard : public std::enable_shared_from_this<Guard> {
 public:
  /// Null where there is nothing to compare with: a world of one, hosts that let no process reach
  /// another's memory, or INTARSIA_GUARD=off on rank 0. COLLECTIVE: all ranks of the world.
  /// `store`: with keys of this world only. `host`: processes of one host that name different ones
  /// are treated as if they were on different hosts; empty: what INTARSIA_GUARD_HOST says.
  static std::shared_ptr<Guard> make(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                     int size, std::chrono::milliseconds timeout,
                                     std::string_view host = {});
  /// `job`: the same on all its ranks, and for no other guard.
  Guard(std::unique_ptr<Boards> boards, std::uint64_t job);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// A group whose calls are compared from now on. `name`: the same on all members. `members`:
  /// ranks of the world. `before`: how many groups there were of this name. Null if there are too
  /// many groups.
  std::shared_ptr<GuardedGroup> join(const std::string& name, std::vector<std::int64_t> members,
                                     std::int64_t before = 0);

  /// Compares a value that must be equal on the members of a group with those of the members that
  /// came here before. `what`: says which value it is, alike on all. One that differs is a
  /// GuardError in the next call of a group of the same members, before it is made, or in
  /// check_trouble.
  ///
  /// Ranks are here if they made equally many calls of the group, and were asked about `what`
  /// equally often since. A rank that skips some work is asked less often: where a member had
  /// both values, since that call, nothing is wrong. What nobody else came to, or too long ago, is
  /// not compared, nor are ranks of other hosts.
  void check_value(const std::string& group, const std::vector<std::int64_t>& members,
                   std::string_view what, std::uint64_t hash, std::string_view way_out);
  /// Before a number is used that was not sent: GuardError if a value of the group differs and its
  /// members came here too, or with what one of these ranks was told.
  void check_trouble(const std::string& group, const std::vector<std::int64_t>& ranks);

  /// Tells the others that this rank will make no more calls. What it noted stays, for their
  /// errors.
  void close(std::string_view why);

 private:
  friend class GuardedGroup;
  /// A value that was not that of another rank.
  struct Doubt {
    std::int64_t rank = 0;
    std::uint64_t kind = 0;
    std::uint64_t mine = 0;
    std::uint64_t theirs = 0;
    std::vector<std::int64_t> members;
    std::string trouble;
  };
  /// How the ranks of a group know that they are at the same place of a program.
  struct Clock {
    const GuardedGroup* group = nullptr;                // null: not joined
    bool left = false;                                  // not joined any more: others may still be
    std::uint64_t place = 0;                            // changes with each call of the group
    std::map<std::uint64_t, std::uint64_t> asked = {};  // since then, by what
    std::vector<Doubt> doubts = {};
  };
  /// Where this rank is asked about a value; the same on all ranks that are here.
  struct Place {
    std::uint64_t kind = 0;  // since which call, and what
    std::uint64_t time = 0;  // how often it was asked

    std::uint64_t key() const;
  };
  /// Unset where that is not known.
  std::optional<Place> place_of(const std::string& group, std::string_view what);
  /// Whether a member had both values, so that they are of different places. Once all are here,
  /// also whether one had none of this kind, or so long ago that it is no longer known.
  bool is_unfounded(const Doubt& doubt, bool all_here) const;
  /// Decides doubts about the values of these ranks, in whichever group they were had, once all are
  /// here; waits for them for a while. GuardError if one was right.
  void settle_doubts(const std::vector<std::int64_t>& members, std::chrono::milliseconds patience,
                     const std::function<bool(std::int64_t rank)>& is_here);
  /// The first doubt about the values of these ranks that is left, once those that are unfounded
  /// are dropped.
  std::optional<Doubt> first_doubt(const std::vector<std::int64_t>& members, bool all_here);
  /// The ranks whose values of a group differ; empty if nothing is in doubt.
  std::vector<std::int64_t> doubted(const std::string& group);
  /// Tells the others, and throws; or ends the process, if INTARSIA_GUARD_ACTION=abort.
  [[noreturn]] void raise(const std::string& trouble);
  /// Why a rank will make no more calls, with its last error; empty while all is well.
  std::string why_gone(std::int64_t rank) const;
  Board& mine() { return *board(boards_->rank()); }
  Board* board(std::int64_t rank) const { return boards_->at(rank); }
  /// What the thread does: answers other hosts, and compares how far they came.
  void look_around();
  void end_thread();

  std::unique_ptr<Boards> boards_;
  std::mutex mutex_;  // of the list of this rank's groups, and of the clocks
  std::map<std::string, Clock, std::less<>> clocks_;  // by the name of the group
  std::atomic<std::size_t> doubts_ = 0;               // of all clocks
  bool closed_ = false;

  // Where there are several hosts.
  std::mutex far_mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::vector<GuardedGroup*> far_groups_;  // that have members on other hosts
  std::unique_ptr<std::thread> thread_;
  std::uint32_t forks_ = forks();
};

/// The calls of one group. THREADS: one at a time makes calls; any may wait for them.
class GuardedGroup {
 public:
  /// `title`: the name, and which of several groups of this name it is.
  GuardedGroup(std::shared_ptr<Guard> guard, std::string name, std::string title,
               std::vector<std::int64_t> members, Board::Group& notes);
  ~GuardedGroup();
  GuardedGroup(const GuardedGroup&) = delete;
  GuardedGroup& operator=(const GuardedGroup&) = delete;

  /// Waits for the other members to join. GuardError that names one who did not before the timeout,
  /// who has ended, or who was told of a fault.
  void meet(std::chrono::milliseconds timeout) const;

  /// The messages that one member sends to another: a group of these two, in which each notes them.
  /// `from`, `to`: their places in this group. Null if there are too many groups.
  std::shared_ptr<GuardedGroup> messages(std::size_t from, std::size_t to, int tag) const;

  /// Notes a call that this rank is about to make, and gives its number, counted from 0 on.
  /// GuardError if a member made another, and again for each call after it.
  std::uint64_t enter(const GuardedCall& call);
  /// GuardError if a member made another call than this rank did. What a member has not made yet,
  /// or made too long ago, is not compared: it shows in the next call, whose hash covers all
  /// before.
  void compare(std::uint64_t number) const;
  /// The same for a rank that waits for a call to end: GuardError also if another member has
  /// failed, or has ended, without having made it.
  void look(std::uint64_t number) const;
  /// After a call that failed: GuardError with the reason, if another member knows it, or has died.
  void explain(std::uint64_t number) const;
  /// Who has not made a call, and what they did last; empty if all have.
  std::string missing(std::uint64_t number) const { return members_.missing(number); }
  /// Prints who keeps the others waiting in a call; once for all that wait.
  void give_notice(std::uint64_t number, std::chrono::seconds waited) const;
  /// Notes which line of the user's program waits for a call, for the errors of others.
  void note_line(std::uint64_t number, std::string_view line) const;

 private:
  friend class Guard;
  /// A call that another host made otherwise, of which this one does not know how yet.
  struct Suspect {
    std::uint64_t number = 0;
    int rounds = 0;  // since it is known
  };
  /// Once the others have had a moment to come.
  [[noreturn]] void raise_disagreement(std::uint64_t number) const;
  /// Decides doubts about values before the next call is made.
  void settle_doubts(std::uint64_t next) const;
  /// Waits a moment for the others to make a call, and to note their lines where this rank has.
  void wait_for_others(std::uint64_t number) const;
  /// How long to wait for what others know, once something is wrong.
  std::chrono::milliseconds patience() const;
  /// Compares calls with those of other hosts. For the guard's thread.
  void compare_far();
  /// Asks what others made, and tells this rank what is wrong.
  void look_at_suspect();
  /// Makes no further call meanwhile, so that what was made is still known.
  void wait_for_verdict() const;

  std::shared_ptr<Guard> guard_;
  std::string name_;
  GroupMembers members_;
  Board& mine_;
  Board::Group& notes_;
  std::mutex mutex_;
  std::uint64_t calls_ = 0;
  std::uint64_t history_ = 0;
  // Of the guard's thread.
  FarCalls far_calls_;
  Suspect suspect_;
  std::atomic<bool> is_suspect_ = false;
};

}  // namespace intarsia
