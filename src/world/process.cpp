#include "world/process.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/world.h"

namespace intarsia {
namespace {

std::atomic<std::uint32_t> forks_until_now = 0;
std::atomic<LiveWorlds*> live_worlds = nullptr;

/// In a fork: forgets the parent's worlds, which are left as they are.
void begin_as_child() {
  forks_until_now.fetch_add(1);
  live_worlds.store(nullptr);
}

[[maybe_unused]] const int kRegistered = pthread_atfork(nullptr, nullptr, begin_as_child);

}  // namespace

std::uint32_t forks() { return forks_until_now.load(std::memory_order_relaxed); }

void fail_in_fork(std::string_view what) {
  fail<WorldError>(
      "World", what,
      " belongs to the process that this one was forked from, and cannot be used here; "
      "work with plain tensors in a fork, or start the process by spawn, with a world "
      "of its own");
}

LiveWorlds& LiveWorlds::instance() {
  LiveWorlds* worlds = live_worlds.load();
  if (worlds == nullptr) {
    auto* made = new LiveWorlds;
    if (live_worlds.compare_exchange_strong(worlds, made)) return *made;
    delete made;
  }
  return *worlds;
}

void LiveWorlds::add(World* world) {
  const std::scoped_lock lock(mutex_);
  if (!std::exchange(registered_, true)) std::atexit([] { instance().close_all(); });
  worlds_.insert(world);
}

void LiveWorlds::remove(World* world) {
  const std::scoped_lock lock(mutex_);
  worlds_.erase(world);
}

c10::intrusive_ptr<c10d::Store> LiveWorlds::store(
    const std::string& key, const std::function<c10::intrusive_ptr<c10d::Store>()>& make) {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = stores_.find(key); found != stores_.end()) return found->second;
  }
  auto made = make();  // may wait for another rank, perhaps in another thread of this process
  const std::scoped_lock lock(mutex_);
  return stores_[key] = std::move(made);
}

int LiveWorlds::count(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  return counts_[key]++;
}

void LiveWorlds::close_all() {
  const std::scoped_lock lock(mutex_);
  for (World* world : worlds_) world->close();
  stores_.clear();
}

}  // namespace intarsia
