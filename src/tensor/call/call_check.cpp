#include "tensor/call/call_check.h"

#include <utility>

namespace intarsia {
namespace {

thread_local const CallCheck* t_innermost = nullptr;

}  // namespace

CallCheck::CallCheck(Check check) : check_(std::move(check)), outside_(t_innermost) {
  t_innermost = this;
  open_.fetch_add(1, std::memory_order_relaxed);
}

CallCheck::~CallCheck() {
  open_.fetch_sub(1, std::memory_order_relaxed);
  t_innermost = outside_;
}

void CallCheck::show_to_innermost(const Frame& call) {
  if (t_innermost != nullptr) t_innermost->check_(call);
}

}  // namespace intarsia
