#include "checkpoint/transfer/chunk_writer.h"

#include <algorithm>
#include <utility>

namespace intarsia::checkpoint {

void ChunkWriter::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    parts_.push_back(bytes.first(std::min(bytes.size(), kChunkBytes - bytes_)));
    bytes_ += parts_.back().size();
    bytes = bytes.subspan(parts_.back().size());
    if (bytes_ == kChunkBytes) write();
  }
}

void ChunkWriter::settle() {
  std::vector<std::byte> joined;
  joined.reserve(bytes_);
  for (const auto& part : parts_) joined.insert(joined.end(), part.begin(), part.end());
  settled_ = std::move(joined);
  parts_.assign(1, settled_);
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
