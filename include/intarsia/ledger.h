// Ledger: the record of every collective that a process took part in.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia {

/// A call of the backend.
enum class CallKind : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  send,
  recv,
  barrier,
};

std::string_view to_text(CallKind kind);

/// Calls of the backend, and their bytes.
struct LedgerTotals {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
};

/// What a collective is made for; everything that the caller knows enters the ledger.
struct Call {
  std::string_view tensor = {};  ///< the name of the tensor
  std::string_view op = {};      ///< the op that needed it
  std::string_view module = {};  ///< where in the model
  /// The op that made the tensor, where calls would look alike without it.
  std::string_view made_by = {};
  /// Grows with every call of the backend that the collective makes, and what this rank hands over
  /// in it: nothing where it receives. All are made before the function that begins it returns.
  LedgerTotals* sent = nullptr;
};

/// One call of the backend, as this rank made it.
struct LedgerEntry {
  std::uint64_t sequence = 0;  ///< counts the collectives of the group from 0 on
  std::uint32_t group = 0;     ///< see Ledger::group_name
  CallKind kind = CallKind::barrier;
  at::ScalarType dtype = at::kByte;
  std::int64_t bytes = 0;  ///< the buffer that this rank hands over: its input, or what recv fills
  std::chrono::steady_clock::time_point start;
  std::string tensor;
  std::string op;
  std::string module;
  std::source_location where;  ///< the user's call of our API
};

/// A ring of the last calls, and for each group a count of its collectives.
/// Always on: recording costs well below a microsecond.
///
/// A collective is begun once by every member and makes the calls of the backend that this member
/// needs: one, except for permute, which sends and receives, or neither where a rank keeps its
/// piece. Whether all members make the same calls is for the guard to compare (docs/guard.md).
///
/// THREADS: any.
class Ledger {
 public:
  explicit Ledger(std::size_t entries = 4096) : ring_(entries) {}

  /// The number of the group of this name, which may be made, given back and made again.
  std::uint32_t add_group(std::string name);
  std::string group_name(std::uint32_t group) const;
  std::size_t groups() const;

  /// A collective of one call: counts it, and records the call.
  void record(std::uint32_t group, CallKind kind, at::ScalarType dtype, std::int64_t bytes,
              const Call& call, const std::source_location& where);

  /// A collective of several calls, or of none: counts it once; its calls are then added.
  void begin(std::uint32_t group);
  void add_call(std::uint32_t group, CallKind kind, at::ScalarType dtype, std::int64_t bytes,
                const Call& call, const std::source_location& where);

  /// Switching it off is for measuring what it costs.
  void enable(bool on) { enabled_ = on; }

  /// The calls that the ring still holds, the oldest first.
  std::vector<LedgerEntry> entries() const;
  /// Since the world was made.
  LedgerTotals totals() const;
  LedgerTotals totals(CallKind kind) const;
  /// The collectives of one group.
  std::uint64_t group_collectives(std::uint32_t group) const;
  /// The entries as text, one per line, for errors and requests.
  std::string dump(std::size_t last = 32) const;

 private:
  struct Group {
    std::string name;
    std::uint64_t collectives = 0;
  };
  /// REQUIRES: the lock is held.
  void append(std::uint32_t group, CallKind kind, at::ScalarType dtype, std::int64_t bytes,
              const Call& call, const std::source_location& where,
              std::chrono::steady_clock::time_point now);

  mutable std::mutex mutex_;
  std::atomic<bool> enabled_ = true;
  std::vector<LedgerEntry> ring_;
  std::uint64_t recorded_ = 0;
  LedgerTotals by_kind_[8];
  std::vector<Group> groups_;
};

}  // namespace intarsia
