// The hashes of a file's chunks, by which a reader knows that what it read is what was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia::checkpoint {

/// A chunk is the file's next so many bytes; the last one may be shorter.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{4} << 20;

/// XXH3 of 64 bits.
std::uint64_t hash_of(std::span<const std::byte> bytes);
std::uint64_t hash_of(std::string_view text);
/// Of parts, as if they were one.
std::uint64_t hash_of(std::span<const std::span<const std::byte>> parts);

/// What stands in the file `NAME.hashes` beside the file NAME.
struct FileHashes {
  std::uint64_t file_bytes = 0;
  /// One for each chunk.
  std::vector<std::uint64_t> chunks;

  std::string to_text() const;
  /// FileError that names the file unless there is one hash for each chunk.
  static FileHashes parse(std::string_view file, std::string_view text);
  friend bool operator==(const FileHashes&, const FileHashes&) = default;
};

/// How many chunks a file has.
inline std::uint64_t chunks_in(std::uint64_t file_bytes) {
  return file_bytes / kChunkBytes + (file_bytes % kChunkBytes != 0 ? 1 : 0);
}

}  // namespace intarsia::checkpoint
