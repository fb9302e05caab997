// The bill of a world: what was sent, for which op.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/communication.h"
#include "intarsia/plan.h"
#include "tensor/core/spec.h"
#include "tensor/move/route.h"

namespace intarsia {

/// Why a tensor is moved.
struct Reason {
  std::string_view op;
  bool implicit = true;           ///< no code asked for it by name
  bool fallback = false;          ///< the op has no rule
  std::string_view made_by = {};  ///< see Call
};

/// While it lives, what this thread moves is booked under the op whose formula runs, and is no
/// hidden move: it is what the op itself sends. The outermost counts.
class FormulaScope {
 public:
  /// `op` must outlive the scope.
  explicit FormulaScope(std::string_view op);
  ~FormulaScope();
  FormulaScope(const FormulaScope&) = delete;
  FormulaScope& operator=(const FormulaScope&) = delete;

  /// The reason, as one who moves inside of a formula has it.
  static Reason outermost(const Reason& asked);

 private:
  std::string_view before_;
};

/// The entries of one world's bill, and the mode that may refuse a move. THREADS: any.
class BillBook {
 public:
  std::atomic<Communication> mode = Communication::automatic;

  /// Refuses a move that is about to be made, or warns of it, where the mode says so.
  void announce(const Spec& spec, const Route& route, const Reason& reason) const;
  /// Enters a move. `sent`: what each of its steps handed over.
  void charge(const Spec& spec, const Route& route, const Reason& reason,
              std::span<const LedgerTotals> sent);
  /// The same for what an op sends by its nature and by no plan: `transition` says what.
  /// `backward`: where a node of autograd does not tell.
  void charge_own(std::string_view op, std::string tensor, std::string axis, std::string transition,
                  const LedgerTotals& sent, std::optional<bool> backward = std::nullopt);
  std::vector<BillEntry> entries() const;
  void clear();
  /// How often it was cleared.
  std::uint64_t clears() const { return clears_; }

 private:
  void enter(BillEntry entry, const LedgerTotals& sent);
  /// The entry for moves of this kind. REQUIRES: the lock is held.
  BillEntry& book(BillEntry entry);

  std::atomic<std::uint64_t> clears_ = 0;
  mutable std::mutex mutex_;
  std::vector<BillEntry> entries_;
  std::map<std::uint64_t, std::size_t> index_;
};

/// What each of several tensors that went together has of it: bytes by its weight; the first has
/// the calls.
std::vector<LedgerTotals> divided(const LedgerTotals& together,
                                  std::span<const std::uint64_t> weights);

/// Whether two entries count the same kind of move.
bool is_same_entry(const BillEntry& a, const BillEntry& b);

/// `S->R`: the kinds of placement before and after a step.
std::string transition_text(const Step& step);

/// The module path of this thread, see ModuleScope.
std::string_view module_path();

}  // namespace intarsia
