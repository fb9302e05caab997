#include "world/guard/far_calls.h"

#include <sstream>
#include <utility>

#include "base/text.h"

namespace intarsia {

std::string FarCalls::Call::text() const { return concat(number, ' ', history); }

FarCalls::Call FarCalls::Call::parse(const std::string& text) {
  Call call;
  std::istringstream(text) >> call.number >> call.history;
  return call;
}

std::optional<FarCalls::Call> FarCalls::call_to_tell(std::uint64_t calls) const {
  if (calls == 0) return std::nullopt;
  // Of many, every 64th is known for longer.
  const bool is_fast = calls - calls_ > Board::kCalls / 2;
  const std::uint64_t number = is_fast ? (calls - 1) / Board::kCalls * Board::kCalls : calls - 1;
  const auto history = notes_.history(number);
  return history ? std::optional(Call{number, *history}) : std::nullopt;
}

bool FarCalls::differs(const Call& told) const {
  const auto mine = notes_.history(told.number);
  return mine && *mine != told.history;
}

std::optional<std::uint64_t> FarCalls::compare(c10d::Store& store) {
  const std::uint64_t calls = notes_.calls();
  if (calls == calls_) return std::nullopt;
  if (pending_ && pending_->number < calls) {
    const Call told = *std::exchange(pending_, std::nullopt);
    if (differs(told)) return told.number;
  }
  const auto mine = call_to_tell(calls);
  calls_ = calls;
  if (!mine) return std::nullopt;
  const std::string known = store.compareSet(key_, std::string(), mine->text());
  const Call told = Call::parse(known);
  if (told.number >= calls) {
    if (!pending_) pending_ = told;
    return std::nullopt;
  }
  if (differs(told)) return told.number;
  if (mine->number > told.number) (void)store.compareSet(key_, known, mine->text());
  return std::nullopt;
}

}  // namespace intarsia
