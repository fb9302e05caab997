#include "tensor/core/plain_log.h"

#include <utility>

#include "base/hash.h"

namespace intarsia {

void PlainLog::add(Entry entry) {
  const std::scoped_lock lock(mutex_);
  hash_ = hash_mix(hash_, entry.hash);
  if (ring_.size() < kEntries) ring_.resize(kEntries);
  ring_[count_++ % kEntries] = std::move(entry);
}

void PlainLog::move_to(PlainLog& other) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  other.ring_ = std::exchange(ring_, {});
  other.count_ = std::exchange(count_, 0);
  other.hash_ = std::exchange(hash_, 0);
}

std::uint64_t PlainLog::count() const {
  const std::scoped_lock lock(mutex_);
  return count_;
}

std::uint64_t PlainLog::hash() const {
  const std::scoped_lock lock(mutex_);
  return hash_;
}

std::vector<std::int64_t> PlainLog::hashes() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::int64_t> out(kEntries, 0);
  for (std::size_t i = 0; i < ring_.size(); ++i) out[i] = static_cast<std::int64_t>(ring_[i].hash);
  return out;
}

PlainLog::Entry PlainLog::entry(std::uint64_t index) const {
  const std::scoped_lock lock(mutex_);
  return ring_.empty() ? Entry{} : ring_[index % kEntries];
}

}  // namespace intarsia
