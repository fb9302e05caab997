#include "parallel/gradients/backward_rounds.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace intarsia {

void BackwardRounds::watch(std::function<void(int task)> ended) {
  const int task = torch::autograd::get_current_graph_task_id();
  if (std::find(watched_.begin(), watched_.end(), task) != watched_.end()) return;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [ended = std::move(ended), task] { ended(task); });
  watched_.push_back(task);
}

void BackwardRounds::forget(int task) { std::erase(watched_, task); }

void BackwardRounds::open() { open_ = torch::autograd::get_current_graph_task_id(); }

void BackwardRounds::close() {
  open_ = kNone;
  watched_.clear();
}

bool BackwardRounds::is_current() const {
  return open_ == torch::autograd::get_current_graph_task_id();
}

bool BackwardRounds::has_failed() const {
  return !watched_.empty() && torch::autograd::get_current_graph_task_id() == kNone;
}

bool BackwardRounds::is_nested() { return torch::autograd::get_current_node() != nullptr; }

}  // namespace intarsia
