// The file of one rank: written by it, and read by whoever needs parts of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/hashes.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/plan/write_plan.h"

namespace intarsia::checkpoint {

/// The memory of this rank's piece of each tensor, contiguous; empty where it has none.
using Pieces = std::span<const std::span<const std::byte>>;

/// Which bytes of a piece a share is.
std::span<const std::byte> bytes_of_share(const SavedTensor& tensor, const Share& share,
                                          std::span<const std::byte> piece);

/// Writes the shares of a rank, and their hashes, into a folder, and syncs both files. nullopt for
/// a rank that has none: it writes no file.
std::optional<SavedFile> write_rank_file(Files& files, const std::string& folder,
                                         std::span<const SavedTensor> tensors,
                                         std::span<const Share> shares, Pieces pieces,
                                         std::int64_t rank, std::int64_t world);

/// How long the file of a rank with these shares will be.
std::uint64_t rank_file_bytes(std::span<const SavedTensor> tensors, std::span<const Share> shares);

/// A rank's file of which every chunk is compared with its hash when it is read.
class RankFile {
 public:
  /// FileError unless the file has the length that the manifest says, and its hashes are those.
  /// Not `verified`: hashes are not read.
  RankFile(Files& files, const std::string& folder, const SavedFile& saved, std::int64_t world,
           bool verified);
  RankFile(const RankFile&) = delete;
  RankFile& operator=(const RankFile&) = delete;

  const std::string& path() const { return path_; }
  const FileHeader& header() const { return header_; }
  /// The tensor of that name. FileError unless it is there and has this dtype and shape.
  const FileTensor& tensor(const SavedTensor& saved, const Part& part) const;
  /// The file's range of a chunk.
  std::uint64_t chunk_begin(std::uint64_t chunk) const { return chunk * kChunkBytes; }
  std::uint64_t chunk_end(std::uint64_t chunk) const;
  /// Reads a chunk. REQUIRES: `into` has its size. FileError, which names the tensors in it, when
  /// it is not what was written.
  void read_chunk(std::uint64_t chunk, std::span<std::byte> into) const;
  /// Reads a few bytes without comparing them.
  void read_unverified(std::uint64_t offset, std::span<std::byte> into) const;
  bool verified() const { return hashes_.has_value(); }

 private:
  void read_header();
  std::string tensors_in(std::uint64_t begin, std::uint64_t end) const;

  std::string path_;
  std::unique_ptr<InputFile> file_;
  std::optional<FileHashes> hashes_;
  FileHeader header_;
  std::map<std::string_view, const FileTensor*> by_name_;
};

}  // namespace intarsia::checkpoint
