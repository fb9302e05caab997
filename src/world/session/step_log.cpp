#include "world/session/step_log.h"

#include <utility>

namespace intarsia {
namespace {

thread_local StepLog* of_thread = nullptr;

}  // namespace

StepLog::StepLog() : before_(std::exchange(of_thread, this)) {}

StepLog::~StepLog() { of_thread = before_; }

StepLog* StepLog::current() { return of_thread; }

std::size_t StepLog::begin(StepEvent collective) {
  collective.kind = StepEvent::Kind::collective;
  events_.push_back(std::move(collective));
  return events_.size() - 1;
}

void StepLog::wait(std::size_t number) {
  events_.push_back({.kind = StepEvent::Kind::wait, .of = number});
}

StepLogPause::StepLogPause() : before_(std::exchange(of_thread, nullptr)) {}

StepLogPause::~StepLogPause() { of_thread = before_; }

}  // namespace intarsia
