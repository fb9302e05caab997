// Communication is visible: what distributed tensors sent on their own, and how to limit it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/world.h"

namespace intarsia {

/// What happens when an op needs a tensor in another layout than it has.
enum class Communication : std::uint8_t {
  automatic,      ///< it is moved, and the move enters the bill
  warn,           ///< the same, with a warning through c10's logging
  explicit_only,  ///< an error, in forward and in backward: code must `redistribute` itself
};

/// The mode of a world. Also holds in backward, whichever thread runs it.
Communication communication(const World& world);
void set_communication(World& world, Communication mode);

/// Sets the mode until the end of the scope.
class CommunicationScope {
 public:
  CommunicationScope(World& world, Communication mode);
  ~CommunicationScope();
  CommunicationScope(const CommunicationScope&) = delete;
  CommunicationScope& operator=(const CommunicationScope&) = delete;

 private:
  World& world_;
  Communication before_;
};

/// Names what is computed until the end of the scope, as part of a module path in the bill and in
/// the ledger. Scopes nest: `encoder.layer0`. Backward is not covered.
class ModuleScope {
 public:
  explicit ModuleScope(std::string_view name);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  std::size_t length_;
};

/// Moves of one kind that happened.
struct BillEntry {
  std::string op;           ///< which op asked: `aten::add.Tensor`, or `redistribute`
  std::string tensor;       ///< what was moved: `f32[8@dp, 4]`
  std::string module = {};  ///< where, see ModuleScope
  std::string axis;         ///< over which mesh axis
  std::string transition;   ///< `S->R`, `P->S`, ...
  bool implicit = true;     ///< false where the code asked for it by name
  bool backward = false;
  bool fallback = false;  ///< the op has no rule, so it ran on full tensors
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;  ///< handed to the backend by this rank; includes what fills up pieces
  std::uint64_t calls = 0;  ///< of the backend; the first of several moves that share one has it
};

/// What was sent since the bill was last cleared, in the order of first use. After 2,048 different
/// entries the rest is counted by transition only.
struct Bill {
  std::vector<BillEntry> entries;
  std::uint64_t count() const;
  std::uint64_t bytes() const;
  std::uint64_t calls() const;
  /// `2 P->R, 1 S->R`, over all entries, sorted.
  std::string transitions() const;
  /// A table, one entry per line, and the sums.
  std::string to_string() const;
  /// `{"entries": [{"op": ..., "tensor": ...}, ...], "count": ..., "bytes": ..., "calls": ...}`
  std::string to_json() const;
  /// A page of its own, to be looked at in a browser: what is sent by axis, module and op, and all
  /// entries, the largest first.
  std::string to_html(std::string_view title = "Bill") const;
};

Bill bill(const World& world);
void clear_bill(World& world);

/// Counts what is sent after it was made, or after the bill was last cleared:
///
///     const Budget budget(*world);
///     const float sum = batch.sum().item<float>();
///     budget.expect("1 P->R");
class Budget {
 public:
  explicit Budget(World& world);
  /// What was sent so far, as `Bill::transitions` says it.
  std::string spent() const;
  /// ValueError when that is not `transitions`; "" means that nothing was sent.
  void expect(std::string_view transitions) const;

 private:
  World& world_;
  std::uint64_t clears_;
  std::vector<BillEntry> before_;
};

/// What is done about plain tensors beside distributed ones, which count as replicated.
enum class PlainTensors : std::uint8_t {
  recorded,  ///< a hash of their values is kept; check_plain_tensors compares it between ranks
  checked,   ///< compared at once: one small all-gather for each
  refused,   ///< an error, except for single numbers and zeros that autograd fills in
};
PlainTensors plain_tensors(const World& world);
void set_plain_tensors(World& world, PlainTensors mode);

/// Compares the plain tensors that ops were given on all ranks since the last check: sizes, dtype
/// and values (all up to 64 KiB, a sample beyond; sizes alone on accelerators). WorldError that
/// names the first op, the tensor and the ranks that differ. COLLECTIVE: all ranks of the world.
void check_plain_tensors(World& world);

/// The cache of decisions: which layouts an op runs in, for each set of operands seen.
struct CacheCounters {
  std::size_t entries = 0;
  std::size_t limit = 0;
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t evictions = 0;
};
CacheCounters cache_counters(const World& world);
void clear_cache(World& world);
/// Sets how many decisions are kept, and clears the cache. Small limits are rounded up to one entry
/// for each of its eight parts. REQUIRES: at least 1.
void set_cache_limit(World& world, std::size_t entries);

}  // namespace intarsia
