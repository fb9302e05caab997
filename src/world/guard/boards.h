// Boards: the boards of all ranks of a world, wherever they are.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/symmetric_memory.h"
#include "world/guard/board.h"

namespace intarsia {

/// What the environment says of the guard; empty if it is not set.
std::string_view guard_setting(const char* name);

struct BoardsOptions {
  /// How long this rank waits for the others to come.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Processes of one host that name different ones are treated as if they were on different hosts;
  /// empty: what INTARSIA_GUARD_HOST says.
  std::string_view host = {};
};

/// The boards of this host's ranks are in memory that its processes share, and always up to date.
/// Those of other hosts are copies. They are asked for over the store, by ranks in doubt only: each
/// asks by raising a counter, at which one rank of each host, its speaker, looks from time to time,
/// and puts what the boards of its host say into the store.
///
/// THREADS: any.
class Boards {
 public:
  /// Null if the ranks of some host cannot reach each other's memory. COLLECTIVE: all ranks of the
  /// world.
  static std::unique_ptr<Boards> make(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                      int size, const BoardsOptions& options);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(seats_.size()); }
  Board* at(std::int64_t rank) const { return seat(rank).board; }
  /// Whether a rank is on this host.
  bool is_near(std::int64_t rank) const { return seat(rank).host == seat(rank_).host; }
  /// Those of these ranks that are on this host.
  std::vector<std::int64_t> near(const std::vector<std::int64_t>& ranks) const;
  bool is_one_host() const { return hosts_.size() == 1; }

  /// Why a rank will make no more calls: it has died, or closed. Empty while all is well.
  std::string why_gone(std::int64_t rank) const;
  /// Whether the process of a rank has ended without having closed.
  bool has_died(std::int64_t rank) const;
  /// Says that this rank will make no more calls.
  void close(std::string_view why);

  /// Takes what the hosts of these ranks have answered, and asks them again. Returns at once: who
  /// wants to know calls it from time to time. Does little if called too often.
  void ask(const std::vector<std::int64_t>& ranks);
  /// What a rank did last, as far as it is known: `its last call was #181 of group [dp=4], ...; its
  /// host does not answer since 12 s`
  std::string last_call(std::int64_t rank) const;
  /// Who waits for this rank in another call: `; ranks 0, 1 wait for rank 2 in call #7 of ...`
  std::string awaited() const;
  /// Answers other hosts, if they ask and this rank is the speaker of its own: the first that is
  /// alive, and whose thread runs. REQUIRES: one thread of each rank that calls it from time to
  /// time.
  void answer();

  /// A connection to the store that nothing else uses. Null where all ranks are on one host.
  c10d::Store* store() const { return store_.get(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Free {
    void operator()(Board* board) const { std::free(board); }
  };
  struct Seat {
    std::size_t host = 0;
    int place = 0;  // among those of its host
    Board* board = nullptr;
    std::unique_ptr<Board, Free> copy = {};
    // What its speaker said.
    std::string gone = {};
    bool has_died = false;
  };
  struct Host {
    std::vector<std::int64_t> ranks = {};
    std::int64_t answer = 0;                       // the number of the last that was taken
    std::optional<Clock::time_point> silent = {};  // since when it was asked
  };

  Boards(int rank, const std::vector<std::string>& hosts);
  const Seat& seat(std::int64_t rank) const { return seats_[static_cast<std::size_t>(rank)]; }
  std::unique_ptr<SymmetricMemory> make_near(const c10::intrusive_ptr<c10d::Store>& store,
                                             const BoardsOptions& options) const;
  void sit_down(std::unique_ptr<SymmetricMemory> near, c10::intrusive_ptr<c10d::Store> store);
  /// REQUIRES: the lock.
  void take_answer(std::size_t host);
  /// Puts what the boards of this host say into the store. `why`: this rank closes.
  void publish(std::string_view why);
  bool is_speaker();

  int rank_;
  std::vector<Seat> seats_;  // by rank
  std::vector<Host> hosts_;
  std::unique_ptr<SymmetricMemory> near_;
  c10::intrusive_ptr<c10d::Store> store_;
  mutable std::mutex mutex_;  // of questions, and of what was answered
  Clock::time_point asked_at_ = {};
  Clock::duration pause_ = {};  // until it may be asked again
  // Of the thread that answers.
  struct Heard {
    std::uint64_t rounds = 0;  // of that rank's thread
    std::uint64_t at = 0;      // in which round of this one
  };
  std::vector<Heard> heard_;  // by place
  std::uint64_t rounds_ = 0;
  std::int64_t answered_ = 0;  // the last question
};

}  // namespace intarsia
