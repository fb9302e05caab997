// ChunkWriter: a file in chunks, each hashed and then written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/hashes.h"

namespace intarsia::checkpoint {

/// What is added is hashed and written from where it is.
class ChunkWriter {
 public:
  explicit ChunkWriter(OutputFile& file) : file_(file) {}
  /// REQUIRES: the bytes stay until `settle` or `finish`.
  void add(std::span<const std::byte> bytes);
  /// Copies what is not written yet: what was added may change then.
  void settle();
  /// Writes what is left, and says what the file holds. Nothing may be added afterwards.
  FileHashes finish();

 private:
  void write();

  OutputFile& file_;
  std::vector<std::span<const std::byte>> parts_;  // of the chunk at hand
  std::uint64_t bytes_ = 0;                        // in them
  std::vector<std::byte> settled_;
  FileHashes hashes_;
};

}  // namespace intarsia::checkpoint
