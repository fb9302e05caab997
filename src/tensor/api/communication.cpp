#include "intarsia/communication.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "intarsia/error.h"
#include "tensor/move/state.h"

namespace intarsia {

Communication communication(const World& world) {
  return TensorState::of(const_cast<World&>(world)).bill().mode;
}

void set_communication(World& world, Communication mode) {
  TensorState::of(world).bill().mode = mode;
}

CommunicationScope::CommunicationScope(World& world, Communication mode)
    : world_(world), before_(communication(world)) {
  set_communication(world, mode);
}

CommunicationScope::~CommunicationScope() { set_communication(world_, before_); }

Bill bill(const World& world) {
  return {TensorState::of(const_cast<World&>(world)).bill().entries()};
}
void clear_bill(World& world) { TensorState::of(world).bill().clear(); }

std::uint64_t Bill::count() const {
  std::uint64_t n = 0;
  for (const BillEntry& e : entries) n += e.count;
  return n;
}

std::uint64_t Bill::bytes() const {
  std::uint64_t n = 0;
  for (const BillEntry& e : entries) n += e.bytes;
  return n;
}

std::uint64_t Bill::calls() const {
  std::uint64_t n = 0;
  for (const BillEntry& e : entries) n += e.calls;
  return n;
}

std::string Bill::transitions() const {
  std::map<std::string, std::uint64_t> counts;
  for (const BillEntry& e : entries) counts[e.transition] += e.count;
  std::vector<std::string> parts;
  for (const auto& [transition, n] : counts) parts.push_back(concat(n, ' ', transition));
  return join(parts, ", ");
}

std::string Bill::to_string() const {
  std::string text;
  for (const BillEntry& e : entries) {
    text += concat(e.count, " x ", e.transition, ' ', e.axis, "  ", e.bytes, " bytes  ", e.tensor,
                   "  ", e.op, e.backward ? " (backward)" : "", e.implicit ? "" : " (asked for)",
                   e.fallback ? " (no rule)" : "", e.module.empty() ? "" : "  in ", e.module, '\n');
  }
  return text + concat(count(), " moves, ", bytes(), " bytes: ", transitions(), '\n');
}

Budget::Budget(World& world)
    : world_(world),
      clears_(TensorState::of(world).bill().clears()),
      before_(bill(world).entries) {}

std::string Budget::spent() const {
  Bill now = bill(world_);
  const bool cleared = TensorState::of(world_).bill().clears() != clears_;
  for (BillEntry& e : now.entries) {
    for (const BillEntry& b : before_) {
      if (!cleared && is_same_entry(e, b)) e.count -= b.count;
    }
  }
  std::erase_if(now.entries, [](const BillEntry& e) { return e.count == 0; });
  return now.transitions();
}

void Budget::expect(std::string_view transitions) const {
  const std::string got = spent();
  if (got != transitions) {
    fail<ValueError>("Budget", "'", got, "' was sent where '", transitions,
                     "' is allowed; the bill:\n", bill(world_).to_string());
  }
}

CacheCounters cache_counters(const World& world) {
  return TensorState::of(const_cast<World&>(world)).decisions().counters();
}
void clear_cache(World& world) { TensorState::of(world).decisions().clear(); }
void set_cache_limit(World& world, std::size_t entries) {
  if (entries < 1) fail<ValueError>("set_cache_limit", "a cache holds at least one entry");
  TensorState::of(world).decisions().set_limit(entries);
}

}  // namespace intarsia
