// What plain tensors ranks passed beside distributed ones, so that differences can be named.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace intarsia {

/// The last plain tensors that ops were given, and a hash of all of them.
class PlainLog {
 public:
  struct Entry {
    std::string op;
    std::string tensor;
    std::uint64_t hash = 0;
  };
  static constexpr std::size_t kEntries = 256;

  void add(Entry entry);
  /// Hands everything over, and is empty.
  void move_to(PlainLog& other);
  std::uint64_t count() const;
  std::uint64_t hash() const;
  /// The hashes of the last entries, the i-th at i % kEntries.
  std::vector<std::int64_t> hashes() const;
  Entry entry(std::uint64_t index) const;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  std::uint64_t count_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace intarsia
