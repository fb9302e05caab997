// SymmetricMemory: memory of the same size on each rank of a group; every rank reaches that of all.
//
// Only the form for processes of one host is built: `make_host_memory`. A backend like NVSHMEM,
// whose ranks reach each other's device memory, would fill the same interface.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace intarsia {

/// Each rank has `bytes()` of memory, which it writes and the others read, and `kSignals` counters
/// that say how far it is. What a rank wrote before a signal is seen by those who waited for it.
///
/// THREADS: `close`, `at`, `why_gone` and `has_died` may be called from any thread; all else from
/// one thread at a time.
class SymmetricMemory {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSignals = 8;

  virtual ~SymmetricMemory() = default;

  /// The place of this rank in its group, and the number of ranks.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// How much memory each rank has.
  virtual std::size_t bytes() const = 0;
  /// Where this process reaches the memory of a rank.
  virtual std::byte* at(int rank) const = 0;

  /// Makes sure that this rank can write to a part of its own memory. What was never reserved takes
  /// up no memory. WorldError when there is none left.
  virtual void reserve(std::size_t begin, std::size_t bytes) = 0;

  /// Sets a counter of this rank, and wakes who waits for it. REQUIRES: it never falls.
  virtual void signal(int slot, std::uint64_t value) = 0;
  /// The counter of a rank.
  virtual std::uint64_t value(int rank, int slot) const = 0;
  /// Returns when the counter of a rank has come to `at_least`. WorldError that names the ranks
  /// which did not come before the deadline, and at once when the rank has died or closed.
  virtual void wait(int rank, int slot, std::uint64_t at_least, Clock::time_point deadline) = 0;

  /// Why a rank will signal no more, or this one shall not wait for it: it has died, or closed.
  /// Empty while all is well. THREADS: any.
  virtual std::string why_gone(int rank) const = 0;
  /// Whether the process of a rank has ended without having closed. THREADS: any.
  virtual bool has_died(int rank) const = 0;

  /// Says that this rank will signal no more. Others that wait for it, and its own waits, end with
  /// an error that quotes `why`. Only the first call counts. The destructor closes too.
  virtual void close(std::string_view why) = 0;
};

struct HostMemoryOptions {
  /// How long this rank waits for the others to come.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// What errors call the ranks; empty: their places in the group.
  std::vector<std::int64_t> names = {};
  /// Which host this is; empty: what host_identity() says.
  std::string host = {};
  /// What the memory is called among the open files of a process.
  std::string label = "intarsia";
  /// A file that keeps what is in the memory, also when all processes have ended; empty: none.
  std::string file = {};
};

/// How much of the file of a rank comes before its memory.
inline constexpr std::size_t kBytesBeforeMemory = 4096;

/// Which processes can map each other's memory: the running kernel, its namespace of process
/// numbers, and the user.
std::string host_identity();

/// Memory that the processes of one host share. Null on all ranks when they are not on one host. It
/// is a file without a name, so that nothing is left when processes are killed. `store`: with keys
/// of this group only. COLLECTIVE: all ranks of the group.
std::unique_ptr<SymmetricMemory> make_host_memory(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size, std::size_t bytes,
                                                  const HostMemoryOptions& options = {});

}  // namespace intarsia
