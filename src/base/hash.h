// Hashing of plain values. Hashes are the same in every process of the same build, because they
// also enter the ledger, where ranks compare them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace intarsia {

/// Mixes one 64-bit value into a running hash (the finaliser of splitmix64).
constexpr std::uint64_t hash_mix(std::uint64_t seed, std::uint64_t value) {
  std::uint64_t x = seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2));
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// FNV-1a over the bytes of a text.
constexpr std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace intarsia
