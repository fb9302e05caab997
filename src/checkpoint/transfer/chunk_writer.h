// ChunkWriter: a file in chunks, each hashed and then written.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/hashes.h"

namespace intarsia::checkpoint {

/// What is added is written from where it is as far as it fills chunks, and otherwise collected in
/// a buffer of one chunk.
class ChunkWriter {
 public:
  explicit ChunkWriter(OutputFile& file) : file_(file) {}
  void add(std::span<const std::byte> bytes);
  /// Writes what is left, and says what the file holds. Nothing may be added afterwards.
  FileHashes finish();

 private:
  void write(std::span<const std::byte> chunk);

  OutputFile& file_;
  std::vector<std::byte> collected_;
  FileHashes hashes_;
};

}  // namespace intarsia::checkpoint
