#include "world/guard/program.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "intarsia/waiting.h"
#include "world/transport/forks.h"

namespace intarsia {
namespace {

constexpr std::string_view kData = "data";
constexpr std::string_view kForward = "forward";
constexpr std::string_view kBackward = "backward";
constexpr std::string_view kOptimizer = "optimizer";
constexpr std::string_view kBefore = "before backward";

/// What a program is in once a phase has ended that was in no other.
std::string_view after(std::string_view phase, std::string_view before_it) {
  if (phase == kData) return kForward;
  if (phase == kBackward) return kOptimizer;
  if (phase == kOptimizer) return kBefore;
  return before_it;
}

thread_local const char t_this_thread = 0;

/// Tells the other ranks why this process ends, where nobody catches an exception.
void note_uncaught_errors() {
  static const std::terminate_handler before = std::get_terminate();
  std::set_terminate([] {
    try {
      if (const auto error = std::current_exception()) std::rethrow_exception(error);
    } catch (const std::exception& error) {
      Program::instance().note_error(error.what());
    } catch (...) {
      Program::instance().note_error("an exception that is no std::exception");
    }
    before();
  });
}

}  // namespace

Program& Program::instance() {
  static auto* const program = new Program;  // outlives the guards of static worlds
  return *program;
}

void Program::add(BoardsOfGuard boards) {
  static std::once_flag once;
  std::call_once(once, note_uncaught_errors);
  const std::scoped_lock lock(mutex_);
  if (forks_ != forks()) guards_.clear();  // a parent's
  forks_ = forks();
  note_phase(boards.mine->times());
  guards_.push_back(std::move(boards));
}

std::span<const BoardsOfGuard> Program::guards() const {
  // The boards that a fork sees are those of its parent.
  return forks_ == forks() ? std::span<const BoardsOfGuard>(guards_)
                           : std::span<const BoardsOfGuard>();
}

void Program::remove(const Board& mine) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(guards_, [&](const BoardsOfGuard& boards) { return boards.mine == &mine; });
}

bool Program::is_timed() const { return thread_.load(std::memory_order_relaxed) == &t_this_thread; }

void Program::begin(std::string_view phase) {
  const std::scoped_lock lock(mutex_);
  thread_.store(&t_this_thread, std::memory_order_relaxed);
  const bool begins_step = outer_.empty() && has_stepped_ && (phase == kData || phase == kBackward);
  outer_.push_back(phase_);
  change_to(std::string(phase));
  if (begins_step) end_step();
}

void Program::end() {
  const std::scoped_lock lock(mutex_);
  if (outer_.empty()) return;
  const std::string ended = phase_;
  const std::string outer = std::move(outer_.back());
  outer_.pop_back();
  change_to(std::string(outer_.empty() ? after(ended, outer) : std::string_view(outer)));
  // There may be several optimizers in a step: it ends where the next one begins.
  has_stepped_ = has_stepped_ || (outer_.empty() && ended == kOptimizer);
}

void Program::change_to(std::string phase) {
  const std::int64_t now = nanoseconds_now();
  if (!phase_.empty()) {
    const std::int64_t own = std::max<std::int64_t>(now - since_ - waited_, 0);
    step_.own[times_->place_of(phase_)] += static_cast<std::uint32_t>(own / 1000);
  }
  phase_ = std::move(phase);
  since_ = now;
  waited_ = 0;
  events_.fetch_add(1, std::memory_order_relaxed);
  note_phase(*times_);
  for (const BoardsOfGuard& boards : guards()) note_phase(boards.mine->times());
}

void Program::note_phase(Times& times) const {
  times.note_phase(phase_.empty() ? std::nullopt : std::optional(times.place_of(phase_)), since_);
}

void Program::end_step() {
  times_->note_step(step_);
  const std::vector<std::string> names = times_->phases();
  for (const BoardsOfGuard& boards : guards()) {
    Times& times = boards.mine->times();
    Times::Step step{.waited = step_.waited};
    for (std::size_t i = 0; i < names.size(); ++i) {
      step.own[times.place_of(names[i])] += step_.own[i];
    }
    times.note_step(step);
  }
  step_ = {};
  has_stepped_ = false;
}

void Program::add_wait(std::int64_t nanoseconds) {
  const std::scoped_lock lock(mutex_);
  waited_ += nanoseconds;
  step_.waited += static_cast<std::uint32_t>(nanoseconds / 1000);
}

void Program::ended(std::uint64_t call, std::int64_t begin) {
  if (events_.load(std::memory_order_relaxed) == call) add_wait(nanoseconds_now() - begin);
}

void Program::note_error(std::string_view error) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // this thread may have died while it held it
  for (const BoardsOfGuard& boards : guards()) boards.mine->note_error(error);
}

void Program::note_stay(std::string_view line) {
  const std::scoped_lock lock(mutex_);
  for (const BoardsOfGuard& boards : guards()) boards.mine->note_stay(line, nanoseconds_now());
}

double Program::quiet_seconds() {
  const std::scoped_lock lock(mutex_);
  std::int64_t news = 0;
  for (const BoardsOfGuard& boards : guards()) news = std::max(news, boards.mine->last_news());
  return news == 0 ? 0 : static_cast<double>(nanoseconds_now() - news) * 1e-9;
}

void begin_phase(std::string_view name) { Program::instance().begin(name); }

void end_phase() { Program::instance().end(); }

void note_error(std::string_view error) { Program::instance().note_error(error); }

double quiet_seconds() { return Program::instance().quiet_seconds(); }

void note_stay(std::string_view line) { Program::instance().note_stay(line); }

}  // namespace intarsia
