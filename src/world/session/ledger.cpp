#include "intarsia/ledger.h"

#include <algorithm>

#include "base/text.h"

namespace intarsia {

std::string_view to_text(CallKind kind) {
  switch (kind) {
    case CallKind::all_gather:
      return "all_gather";
    case CallKind::reduce_scatter:
      return "reduce_scatter";
    case CallKind::all_reduce:
      return "all_reduce";
    case CallKind::all_to_all:
      return "all_to_all";
    case CallKind::broadcast:
      return "broadcast";
    case CallKind::send:
      return "send";
    case CallKind::recv:
      return "recv";
    case CallKind::barrier:
      return "barrier";
  }
  return "?";
}

namespace {

/// The caller counts whether the ledger is on or not.
void count_for(const Call& call, CallKind kind, std::int64_t bytes) {
  if (call.sent == nullptr) return;
  ++call.sent->calls;
  if (kind != CallKind::recv) call.sent->bytes += static_cast<std::uint64_t>(bytes);
}

}  // namespace

std::uint32_t Ledger::add_group(std::string name) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].name == name) return static_cast<std::uint32_t>(i);
  }
  groups_.push_back({std::move(name)});
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

std::string Ledger::group_name(std::uint32_t group) const {
  const std::scoped_lock lock(mutex_);
  return groups_.at(group).name;
}

std::size_t Ledger::groups() const {
  const std::scoped_lock lock(mutex_);
  return groups_.size();
}

void Ledger::append(std::uint32_t group, CallKind kind, at::ScalarType dtype, std::int64_t bytes,
                    const Call& call, const std::source_location& where,
                    std::chrono::steady_clock::time_point now) {
  LedgerEntry& e = ring_[recorded_++ % ring_.size()];
  e.sequence = groups_[group].collectives - 1;
  e.group = group;
  e.kind = kind;
  e.dtype = dtype;
  e.bytes = bytes;
  e.start = now;
  e.tensor.assign(call.tensor);  // reuses the memory of the entry it replaces
  e.op.assign(call.op);
  e.module.assign(call.module);
  e.where = where;
  LedgerTotals& totals = by_kind_[static_cast<std::size_t>(kind)];
  ++totals.calls;
  totals.bytes += static_cast<std::uint64_t>(bytes);
}

void Ledger::record(std::uint32_t group, CallKind kind, at::ScalarType dtype, std::int64_t bytes,
                    const Call& call, const std::source_location& where) {
  count_for(call, kind, bytes);
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  const std::scoped_lock lock(mutex_);
  ++groups_[group].collectives;
  append(group, kind, dtype, bytes, call, where, now);
}

void Ledger::begin(std::uint32_t group) {
  if (!enabled_) return;
  const std::scoped_lock lock(mutex_);
  ++groups_[group].collectives;
}

void Ledger::add_call(std::uint32_t group, CallKind kind, at::ScalarType dtype, std::int64_t bytes,
                      const Call& call, const std::source_location& where) {
  count_for(call, kind, bytes);
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  const std::scoped_lock lock(mutex_);
  append(group, kind, dtype, bytes, call, where, now);
}

std::vector<LedgerEntry> Ledger::entries() const {
  const std::scoped_lock lock(mutex_);
  std::vector<LedgerEntry> out;
  const std::uint64_t kept = std::min<std::uint64_t>(recorded_, ring_.size());
  for (std::uint64_t i = recorded_ - kept; i < recorded_; ++i)
    out.push_back(ring_[i % ring_.size()]);
  return out;
}

LedgerTotals Ledger::totals() const {
  const std::scoped_lock lock(mutex_);
  LedgerTotals sum;
  for (const LedgerTotals& t : by_kind_) {
    sum.calls += t.calls;
    sum.bytes += t.bytes;
  }
  return sum;
}

LedgerTotals Ledger::totals(CallKind kind) const {
  const std::scoped_lock lock(mutex_);
  return by_kind_[static_cast<std::size_t>(kind)];
}

std::uint64_t Ledger::group_collectives(std::uint32_t group) const {
  const std::scoped_lock lock(mutex_);
  return groups_.at(group).collectives;
}

std::string Ledger::dump(std::size_t last) const {
  const std::vector<LedgerEntry> all = entries();
  std::string out;
  for (std::size_t i = all.size() - std::min(last, all.size()); i < all.size(); ++i) {
    const LedgerEntry& e = all[i];
    out += concat('#', e.sequence, ' ', to_text(e.kind), " over ", group_name(e.group), ' ',
                  c10::toString(e.dtype), ' ', e.bytes, " B");
    if (!e.tensor.empty()) out += concat(" tensor ", e.tensor);
    if (!e.op.empty()) out += concat(" for ", e.op);
    if (!e.module.empty()) out += concat(" in ", e.module);
    out += concat(" at ", e.where.file_name(), ':', e.where.line(), '\n');
  }
  return out;
}

}  // namespace intarsia
