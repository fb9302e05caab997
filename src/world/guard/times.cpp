#include "world/guard/times.h"

namespace intarsia {

std::size_t Times::place_of(std::string_view phase) {
  const std::uint64_t known = known_.load(std::memory_order_relaxed);
  const std::string_view name = phase.substr(0, names_[0].size() - 1);
  for (std::size_t i = 0; i < known; ++i) {
    if (names_[i].data() == name) return i;
  }
  if (known == kPhases) return kPhases - 1;
  names_[known][name.copy(names_[known].data(), name.size())] = '\0';
  known_.store(known + 1, std::memory_order_release);
  return known;
}

void Times::note_phase(std::optional<std::size_t> place, std::int64_t now) {
  since_.store(now, std::memory_order_relaxed);
  current_.store(place ? *place + 1 : 0, std::memory_order_release);
}

void Times::note_step(const Step& step) {
  const std::uint64_t number = steps_.load(std::memory_order_relaxed);
  Noted& noted = noted_[number % kSteps];
  noted.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (std::size_t i = 0; i < kPhases; ++i) {
    noted.own[i].store(step.own[i], std::memory_order_relaxed);
  }
  noted.waited.store(step.waited, std::memory_order_relaxed);
  noted.number.store(number + 1, std::memory_order_release);
  steps_.store(number + 1, std::memory_order_release);
}

std::string Times::phase() const {
  const std::uint64_t place = current_.load(std::memory_order_acquire);
  return place == 0 ? std::string() : names_[place - 1].data();
}

std::optional<Times::Step> Times::step(std::uint64_t number) const {
  const Noted& noted = noted_[number % kSteps];
  const std::uint64_t before = noted.number.load(std::memory_order_acquire);
  Step step;
  for (std::size_t i = 0; i < kPhases; ++i) {
    step.own[i] = noted.own[i].load(std::memory_order_relaxed);
  }
  step.waited = noted.waited.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t after = noted.number.load(std::memory_order_relaxed);
  if (before != number + 1 || after != number + 1) return std::nullopt;
  return step;
}

std::vector<std::string> Times::phases() const {
  std::vector<std::string> names;
  const std::uint64_t known = known_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < known; ++i) names.emplace_back(names_[i].data());
  return names;
}

}  // namespace intarsia
