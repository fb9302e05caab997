// Hashing of plain values. Hashes are the same in every process of the same build, because
// ranks compare them (docs/guard.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace intarsia {

/// Mixes one 64-bit value into a running hash (the finaliser of splitmix64).
constexpr std::uint64_t hash_mix(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t x = seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A hash of a text, eight bytes at a time.
inline std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ text.size();
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0x9fb21c651e98df25ULL;
    hash ^= hash >> 32;
  };
  while (text.size() >= sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof(word));
    mix(word);
    text.remove_prefix(sizeof(word));
  }
  std::uint64_t rest = 0;
  if (!text.empty()) std::memcpy(&rest, text.data(), text.size());
  mix(rest);
  return hash;
}

}  // namespace intarsia
