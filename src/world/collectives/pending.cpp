#include "world/collectives/pending.h"

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/transport/forks.h"

namespace intarsia {

Pending ready(std::vector<at::Tensor> result) {
  auto state = std::make_unique<Pending::State>();
  state->result = std::move(result);
  return Pending(std::move(state));
}

Pending pending(std::string_view what, Works works, std::vector<at::Tensor> buffers,
                std::function<std::vector<at::Tensor>()> finish) {
  auto state = std::make_unique<Pending::State>();
  state->what = what;
  state->works = std::move(works);
  state->buffers = std::move(buffers);
  state->finish = std::move(finish);
  return Pending(std::move(state));
}

Pending after(Pending pending,
              std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> then) {
  Pending::State& state = *pending.state_;
  if (state.finish) {
    state.finish = [finish = std::move(state.finish), then = std::move(then)] {
      return then(finish());
    };
  } else {
    state.result = then(std::move(state.result));
  }
  return pending;
}

Pending::Pending(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Pending::~Pending() {
  if (!state_ || state_->works.list.empty()) return;
  // In a fork nobody finishes what the parent began; the buffers are copies that nothing writes to.
  if (state_->works.context->forks != forks()) {
    (void)state_.release();
    return;
  }
  // An exception passes by: the other ranks may never come, and must not keep the error from being
  // seen. The buffers stay with the group, whose backend may still read and write them.
  if (std::uncaught_exceptions() > state_->exceptions) {
    const auto context = state_->works.context;
    const std::scoped_lock lock(context->mutex);
    auto kept = std::make_shared<State>(std::move(*state_));
    kept->works.context.reset();
    kept->works.group.reset();
    context->abandoned.push_back(std::move(kept));
    return;
  }
  try {
    wait_for(state_->works, state_->what);
  } catch (const std::exception&) {
    // Nobody asked for the result. The group is unusable now, which its next call reports.
  }
}

const std::vector<at::Tensor>& Pending::wait() {
  State& s = *state_;
  if (s.error) std::rethrow_exception(s.error);
  if (s.finish) {
    const auto finish = std::exchange(s.finish, nullptr);
    const Works works = std::exchange(s.works, {});
    try {
      wait_for(works, s.what);
      s.result = finish();
    } catch (...) {
      s.error = std::current_exception();
    }
    s.buffers.clear();
    if (s.error) std::rethrow_exception(s.error);
  }
  return s.result;
}

at::Tensor Pending::tensor() {
  const std::vector<at::Tensor>& all = wait();
  if (all.size() != 1) {
    fail<ValueError>("Pending::tensor", "there are ", all.size(),
                     " results, one for each member in this process; use wait()");
  }
  return all[0];
}

bool Pending::done() const {
  return std::all_of(state_->works.list.begin(), state_->works.list.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

}  // namespace intarsia
