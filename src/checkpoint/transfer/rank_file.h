// The file of one rank: written by it, and read by whoever needs parts of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

/// What a rank will write: its shares in the order of the file, and all before them.
struct RankFilePlan {
  std::vector<Share> shares;
  std::string header;
  /// The length of the file; 0 for a rank that has no share, and writes no file.
  std::uint64_t bytes = 0;
};

RankFilePlan plan_rank_file(std::span<const SavedTensor> tensors, std::vector<Share> shares);
/// The same for the hf form: nothing stands before the shares, which are in the order of the list.
RankFilePlan plan_shared_part(std::span<const SavedTensor> tensors, std::vector<Share> shares);

/// The places of such shares in what the rank writes.
FileHeader header_of_shares(std::span<const SavedTensor> tensors, std::span<const Share> shares);

/// Writes the file of a rank, and its hashes, into a folder, and syncs both; `shares` are the bytes
/// of each share of the plan. nullopt for a rank that writes none.
std::optional<SavedFile> write_rank_file(Files& files, const std::string& folder,
                                         const RankFilePlan& plan, Pieces shares, std::int64_t rank,
                                         std::int64_t world);
/// The same where what the rank writes goes to `file`.
std::optional<SavedFile> write_rank_file(Files& files, const std::string& folder, OutputFile& file,
                                         const RankFilePlan& plan, Pieces shares, std::int64_t rank,
                                         std::int64_t world);
/// The same where shares are brought one after the other, each only until the next.
using ShareReader = std::function<std::span<const std::byte>(const Share&)>;
std::optional<SavedFile> write_rank_file(Files& files, const std::string& folder,
                                         const RankFilePlan& plan, const ShareReader& read,
                                         std::int64_t rank, std::int64_t world);

/// A rank's file of which every chunk is compared with its hash when it is read.
class RankFile {
 public:
  /// FileError unless the file has the length that the manifest says, and its hashes, if a file
  /// with them is named, are those.
  RankFile(Files& files, std::string path, const SavedFile& saved,
           const std::optional<std::string>& hashes_path);
  /// The same where what the rank wrote is `file`, without a header.
  RankFile(Files& files, std::string path, std::unique_ptr<InputFile> file, FileHeader header,
           const SavedFile& saved, const std::optional<std::string>& hashes_path);
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
  void check(Files& files, const SavedFile& saved, const std::optional<std::string>& hashes_path);
  void read_header();
  void use_header(FileHeader header);
  std::string tensors_in(std::uint64_t begin, std::uint64_t end) const;

  std::string path_;
  std::unique_ptr<InputFile> file_;
  std::optional<FileHashes> hashes_;
  FileHeader header_;
  std::map<std::string_view, const FileTensor*> by_name_;
};

}  // namespace intarsia::checkpoint
