// A bounded cache of decisions, by words that say which call is meant.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/hash.h"
#include "intarsia/communication.h"

namespace intarsia {

/// Values by keys of 64-bit words. Holds at most `limit` values: one that was not used lately makes
/// room. Values are shared: one that is dropped while in use lives until its users are done, so
/// clearing can neither free nor wait for them.
///
/// THREADS: any.
template <class T>
class BoundedCache {
 public:
  explicit BoundedCache(std::size_t limit) { set_limit(limit); }

  using Key = std::span<const std::uint64_t>;

  static std::uint64_t hash(Key key) {
    std::uint64_t h = key.size();
    for (const std::uint64_t word : key) {
      h = (h ^ word) * 0x9e3779b97f4a7c15ULL;
      h ^= h >> 32;
    }
    return h;
  }

  std::shared_ptr<const T> find(Key key, std::uint64_t hash) {
    Shard& shard = shard_of(hash);
    const std::scoped_lock lock(shard.mutex);
    for (std::uint32_t at = shard.heads[head_of(shard, hash)]; at != kNone;
         at = shard.slots[at].next) {
      Slot& slot = shard.slots[at];
      if (slot.hash == hash && same(slot.key, key)) {
        slot.used = true;
        ++shard.hits;
        return slot.value;
      }
    }
    ++shard.misses;
    return nullptr;
  }

  /// Adds a value, unless another thread already did.
  void insert(Key key, std::uint64_t hash, std::shared_ptr<const T> value) {
    Shard& shard = shard_of(hash);
    std::shared_ptr<const T> dropped;  // destroyed after the lock is released
    const std::scoped_lock lock(shard.mutex);
    for (std::uint32_t at = shard.heads[head_of(shard, hash)]; at != kNone;
         at = shard.slots[at].next) {
      if (shard.slots[at].hash == hash && same(shard.slots[at].key, key)) return;
    }
    std::uint32_t place = static_cast<std::uint32_t>(shard.slots.size());
    if (shard.slots.size() < shard.limit) {
      shard.slots.emplace_back();
    } else {
      place = make_room(shard, dropped);
    }
    Slot& slot = shard.slots[place];
    slot.key.assign(key.begin(), key.end());
    slot.hash = hash;
    slot.value = std::move(value);
    slot.used = true;
    std::uint32_t& head = shard.heads[head_of(shard, hash)];
    slot.next = head;
    head = place;
  }

  void clear() {
    for (Shard& shard : shards_) {
      std::vector<Slot> dropped;
      const std::scoped_lock lock(shard.mutex);
      dropped.swap(shard.slots);
      std::fill(shard.heads.begin(), shard.heads.end(), kNone);
      shard.hand = 0;
    }
  }

  /// Drops all values.
  void set_limit(std::size_t limit) {
    limit_ = limit;
    for (Shard& shard : shards_) {
      std::vector<Slot> dropped;  // destroyed after the lock is released
      const std::scoped_lock lock(shard.mutex);
      dropped.swap(shard.slots);
      shard.limit = std::max<std::size_t>(1, limit / kShards);
      std::size_t heads = 16;
      while (heads < shard.limit) heads *= 2;
      shard.heads.assign(heads, kNone);
      shard.hand = 0;
    }
  }

  CacheCounters counters() const {
    CacheCounters out;
    out.limit = limit_;
    for (const Shard& shard : shards_) {
      const std::scoped_lock lock(shard.mutex);
      out.entries += shard.slots.size();
      out.hits += shard.hits;
      out.misses += shard.misses;
      out.evictions += shard.evictions;
    }
    return out;
  }

 private:
  static constexpr std::size_t kShards = 8;
  static constexpr std::uint32_t kNone = ~0U;

  struct Slot {
    std::vector<std::uint64_t> key;
    std::uint64_t hash = 0;
    std::shared_ptr<const T> value;
    std::uint32_t next = kNone;
    bool used = false;
  };
  struct Shard {
    mutable std::mutex mutex;
    std::vector<Slot> slots;
    std::vector<std::uint32_t> heads;  // chains of slots; a power of two
    std::size_t limit = 1;
    std::size_t hand = 0;
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t evictions = 0;
  };

  static bool same(const std::vector<std::uint64_t>& a, Key b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), b.size_bytes()) == 0;
  }
  static std::size_t head_of(const Shard& shard, std::uint64_t hash) {
    return hash & (shard.heads.size() - 1);
  }
  Shard& shard_of(std::uint64_t hash) { return shards_[(hash >> 60) % kShards]; }

  /// Frees the slot of a value that was not used since the hand last passed.
  std::uint32_t make_room(Shard& shard, std::shared_ptr<const T>& dropped) {
    while (std::exchange(shard.slots[shard.hand].used, false)) {
      shard.hand = (shard.hand + 1) % shard.slots.size();
    }
    const auto place = static_cast<std::uint32_t>(shard.hand);
    shard.hand = (shard.hand + 1) % shard.slots.size();
    Slot& slot = shard.slots[place];
    std::uint32_t* link = &shard.heads[head_of(shard, slot.hash)];
    while (*link != place) link = &shard.slots[*link].next;
    *link = slot.next;
    dropped = std::move(slot.value);
    ++shard.evictions;
    return place;
  }

  std::atomic<std::size_t> limit_ = 0;
  Shard shards_[kShards];
};

}  // namespace intarsia
