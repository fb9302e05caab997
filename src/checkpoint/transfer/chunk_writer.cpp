#include "checkpoint/transfer/chunk_writer.h"

#include <algorithm>

namespace intarsia::checkpoint {

void ChunkWriter::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (collected_.empty() && bytes.size() >= kChunkBytes) {
      write(bytes.first(kChunkBytes));
      bytes = bytes.subspan(kChunkBytes);
      continue;
    }
    collected_.reserve(kChunkBytes);
    const auto part = bytes.first(std::min(bytes.size(), kChunkBytes - collected_.size()));
    collected_.insert(collected_.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
    if (collected_.size() == kChunkBytes) {
      write(collected_);
      collected_.clear();
    }
  }
}

FileHashes ChunkWriter::finish() {
  if (!collected_.empty()) write(collected_);
  return hashes_;
}

void ChunkWriter::write(std::span<const std::byte> chunk) {
  hashes_.chunks.push_back(hash_of(chunk));
  hashes_.file_bytes += chunk.size();
  file_.append(chunk);
}

}  // namespace intarsia::checkpoint
