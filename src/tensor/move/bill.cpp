#include "tensor/move/bill.h"

#include <c10/util/Logging.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

/// The op whose formula this thread runs; empty where none is.
thread_local std::string_view formula_op;

thread_local std::string t_module;

constexpr std::size_t kBillEntries = 2048;

bool in_backward() { return torch::autograd::get_current_node() != nullptr; }

BillEntry entry_of(const Spec& spec, const Plan& plan, const Step& step, const Reason& reason) {
  return {.op = std::string(reason.op),
          .tensor = spec.with(plan.from).to_string(),
          .module = std::string(module_path()),
          .axis = step.axes_text(),
          .transition = transition_text(step),
          .implicit = reason.implicit,
          .backward = in_backward(),
          .fallback = reason.fallback};
}

}  // namespace

bool is_same_entry(const BillEntry& a, const BillEntry& b) {
  return a.op == b.op && a.tensor == b.tensor && a.axis == b.axis && a.module == b.module &&
         a.transition == b.transition && a.implicit == b.implicit && a.backward == b.backward &&
         a.fallback == b.fallback;
}

std::string transition_text(const Step& step) {
  bool reduces = false;
  bool shards = false;
  for (const std::int8_t a : step.axes) {
    const auto axis = static_cast<std::size_t>(a);
    reduces = reduces || step.before.placement(axis).is_partial();
    shards = shards || step.after.placement(axis).is_shard();
  }
  return concat(reduces ? "P" : "S", "->", shards ? "S" : "R");
}

std::string_view module_path() { return t_module; }

ModuleScope::ModuleScope(std::string_view name) : length_(t_module.size()) {
  if (!t_module.empty()) t_module += '.';
  t_module += name;
}

ModuleScope::~ModuleScope() { t_module.resize(length_); }

FormulaScope::FormulaScope(std::string_view op) : before_(formula_op) {
  if (formula_op.empty()) formula_op = op;
}
FormulaScope::~FormulaScope() { formula_op = before_; }

Reason FormulaScope::outermost(const Reason& asked) {
  if (formula_op.empty()) return asked;
  return {
      .op = formula_op, .implicit = false, .fallback = asked.fallback, .made_by = asked.made_by};
}

void BillBook::announce(const Spec& spec, const Route& route, const Reason& reason) const {
  const Communication now = mode.load(std::memory_order_relaxed);
  if (!reason.implicit || now == Communication::automatic) return;
  for (const StepRoute& way : route.steps) {
    if (!way.step->communicates()) continue;
    const BillEntry entry = entry_of(spec, *route.plan, *way.step, reason);
    const std::string text =
        concat('[', reason.op, "] ", entry.backward ? "backward " : "", "moves ", entry.tensor,
               " on ", route.plan->from.mesh(), " over ", entry.axis, " (", entry.transition, ", ",
               reason.fallback ? "the op has no rule and runs on full tensors" : "to run the op",
               "); redistribute(tensor, \"", route.plan->to.placements_text(),
               "\") before it says so in code, or choose another layout");
    if (now == Communication::explicit_only) throw ValueError(text + "; mode explicit_only");
    LOG(WARNING) << text;
  }
}

void BillBook::charge(const Spec& spec, const Route& route, const Reason& reason,
                      std::span<const LedgerTotals> sent) {
  for (std::size_t i = 0; i < route.steps.size(); ++i) {
    const Step& step = *route.steps[i].step;
    if (step.communicates()) enter(entry_of(spec, *route.plan, step, reason), sent[i]);
  }
}

void BillBook::charge_own(std::string_view op, std::string tensor, std::string axis,
                          std::string transition, const LedgerTotals& sent,
                          std::optional<bool> backward) {
  enter({.op = std::string(formula_op.empty() ? op : formula_op),
         .tensor = std::move(tensor),
         .module = std::string(module_path()),
         .axis = std::move(axis),
         .transition = std::move(transition),
         .implicit = false,
         .backward = backward.value_or(in_backward())},
        sent);
}

void BillBook::enter(BillEntry entry, const LedgerTotals& sent) {
  const std::scoped_lock lock(mutex_);
  BillEntry& booked = book(std::move(entry));
  ++booked.count;
  booked.bytes += sent.bytes;
  booked.calls += sent.calls;
}

std::vector<LedgerTotals> divided(const LedgerTotals& together,
                                  std::span<const std::uint64_t> weights) {
  std::vector<LedgerTotals> out(weights.size());
  const auto all = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  if (out.empty()) return out;
  out[0] = together;
  if (all == 0) return out;
  std::uint64_t so_far = 0;
  std::uint64_t given = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    so_far += weights[i];
    const auto until = static_cast<std::uint64_t>(static_cast<long double>(together.bytes) *
                                                  static_cast<long double>(so_far) /
                                                  static_cast<long double>(all));
    out[i].bytes = until - std::exchange(given, until);
  }
  return out;
}

BillEntry& BillBook::book(BillEntry entry) {
  std::uint64_t key = 0;
  for (const std::string* text :
       {&entry.op, &entry.tensor, &entry.module, &entry.axis, &entry.transition}) {
    key = hash_mix(key, hash_text(*text));
  }
  key = hash_mix(
      key, (entry.implicit ? 1U : 0U) | (entry.backward ? 2U : 0U) | (entry.fallback ? 4U : 0U));
  if (const auto known = index_.find(key); known != index_.end()) {
    return entries_[known->second];
  }
  if (entries_.size() >= kBillEntries) {
    // Ever new shapes: the rest is counted by transition only.
    entry.op = "(others)";
    entry.tensor.clear();
    entry.module.clear();
    const auto same = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const BillEntry& e) { return is_same_entry(e, entry); });
    if (same != entries_.end()) return *same;
  } else {
    index_.emplace(key, entries_.size());
  }
  return entries_.emplace_back(std::move(entry));
}

std::vector<BillEntry> BillBook::entries() const {
  const std::scoped_lock lock(mutex_);
  return entries_;
}

void BillBook::clear() {
  const std::scoped_lock lock(mutex_);
  entries_.clear();
  index_.clear();
  ++clears_;
}

}  // namespace intarsia
