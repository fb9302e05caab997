#include "world/session/live_worlds.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <utility>

#include "intarsia/world.h"

namespace intarsia {
namespace {

std::atomic<LiveWorlds*> live_worlds = nullptr;

// A fork forgets the parent's worlds, which are left as they are.
[[maybe_unused]] const int kRegistered =
    pthread_atfork(nullptr, nullptr, [] { live_worlds.store(nullptr); });

}  // namespace

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
