#include "checkpoint/transfer/chunk_writer.h"

#include <algorithm>

namespace intarsia::checkpoint {

void ChunkWriter::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    parts_.push_back(bytes.first(std::min(bytes.size(), kChunkBytes - bytes_)));
    bytes_ += parts_.back().size();
    bytes = bytes.subspan(parts_.back().size());
    if (bytes_ == kChunkBytes) write();
  }
}

FileHashes ChunkWriter::finish() {
  if (bytes_ > 0) write();
  return hashes_;
}

void ChunkWriter::write() {
  hashes_.chunks.push_back(hash_of(parts_));
  hashes_.file_bytes += bytes_;
  file_.append_all(parts_);
  parts_.clear();
  bytes_ = 0;
}

}  // namespace intarsia::checkpoint
