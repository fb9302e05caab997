// Interning: equal values are one object.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace intarsia {

/// A value that is held once per process. `hash` is computed once, when it is made.
template <class T>
struct InternedNode {
  T value;
  std::size_t hash;
  mutable std::atomic<std::int64_t> uses{1};
};

/// The table of all live values of one type; what nothing uses any more is freed at once.
///
/// THREADS: every function may be called from any thread.
///
/// The count of uses falls from one to zero only while the shard's lock is held, and lookups take
/// the same lock: so a lookup can never revive a node that another thread is about to delete.
template <class T>
class Interner {
 public:
  using Node = InternedNode<T>;

  /// The node for `value`, with one use added for the caller.
  const Node* acquire(T value, std::size_t hash) {
    Shard& shard = shard_of(hash);
    const std::scoped_lock lock(shard.mutex);
    const Key key{&value, hash};
    if (const auto found = shard.nodes.find(key); found != shard.nodes.end()) {
      (*found)->uses.fetch_add(1, std::memory_order_relaxed);
      return *found;
    }
    const Node* node = new Node{std::move(value), hash};
    shard.nodes.insert(node);
    return node;
  }

  static void add_use(const Node* node) { node->uses.fetch_add(1, std::memory_order_relaxed); }

  void release(const Node* node) {
    std::int64_t uses = node->uses.load(std::memory_order_relaxed);
    while (uses > 1) {
      if (node->uses.compare_exchange_weak(uses, uses - 1, std::memory_order_acq_rel)) return;
    }
    Shard& shard = shard_of(node->hash);
    {
      const std::scoped_lock lock(shard.mutex);
      if (node->uses.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      shard.nodes.erase(node);
    }
    delete node;
  }

  /// How many distinct values are alive.
  std::size_t size() const {
    std::size_t count = 0;
    for (const Shard& shard : shards_) {
      const std::scoped_lock lock(shard.mutex);
      count += shard.nodes.size();
    }
    return count;
  }

 private:
  struct Key {
    const T* value;
    std::size_t hash;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const Node* node) const { return node->hash; }
    std::size_t operator()(const Key& key) const { return key.hash; }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const Node* a, const Node* b) const { return a == b; }
    bool operator()(const Key& a, const Node* b) const {
      return a.hash == b->hash && *a.value == b->value;
    }
    bool operator()(const Node* a, const Key& b) const { return (*this)(b, a); }
  };
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_set<const Node*, Hash, Equal> nodes;
  };

  // Sixteen locks: threads that intern different values rarely meet.
  static constexpr std::size_t kShards = 16;
  Shard& shard_of(std::size_t hash) { return shards_[(hash >> 57) % kShards]; }
  Shard shards_[kShards];
};

}  // namespace intarsia
