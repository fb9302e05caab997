#include "checkpoint/transfer/rank_file.h"

#include <algorithm>

#include "base/text.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/transfer/chunk_writer.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::uint64_t kMostHashBytes = std::uint64_t{1} << 32;

/// The tensor that stands for a part in the file.
FileTensor file_tensor_of(const SavedTensor& tensor, const Part& part) {
  return file_tensor(part_name(tensor, part), tensor.type.dtype, part.shape);
}

/// Longer elements first, so that each tensor begins at a multiple of its element.
void put_in_order_of_file(std::span<const SavedTensor> tensors, std::vector<Share>& shares) {
  std::stable_sort(shares.begin(), shares.end(), [&](const Share& a, const Share& b) {
    return element_bytes(tensors[a.tensor].type.dtype) >
           element_bytes(tensors[b.tensor].type.dtype);
  });
}

/// What a rank writes to a file, with the shares that `fill` adds after the header, and its hashes.
template <class Fill>
SavedFile write_file(Files& files, const std::string& folder, OutputFile& file,
                     const RankFilePlan& plan, std::int64_t rank, std::int64_t world,
                     const Fill& fill) {
  file.expect(plan.bytes);
  ChunkWriter writer(file);
  writer.add(std::as_bytes(std::span(plan.header)));
  fill(writer);
  const FileHashes hashes = writer.finish();
  const std::string text = hashes.to_text();
  const auto beside = files.create(join_path(folder, hash_file_name(rank, world)));
  beside->append(std::as_bytes(std::span(text)));
  // Both are written before the first is synced: what file systems log of them goes together.
  file.sync();
  beside->sync();
  return {rank, hashes.file_bytes, hash_of(text)};
}

std::unique_ptr<OutputFile> new_file(Files& files, const std::string& folder, std::int64_t rank,
                                     std::int64_t world) {
  return files.create(join_path(folder, data_file_name(rank, world)));
}

}  // namespace

std::span<const std::byte> bytes_of_share(const SavedTensor& tensor, const Share& share,
                                          std::span<const std::byte> piece) {
  // Dimensions before the rows have size 1, so that rows follow each other.
  const std::uint64_t bytes = bytes_of(tensor.type.dtype, share.part.shape);
  const std::uint64_t row = bytes / static_cast<std::uint64_t>(share.rows.size());
  return piece.subspan(static_cast<std::uint64_t>(share.rows.begin) * row, bytes);
}

RankFilePlan plan_rank_file(std::span<const SavedTensor> tensors, std::vector<Share> shares) {
  if (shares.empty()) return {};
  put_in_order_of_file(tensors, shares);
  std::vector<FileTensor> placed;
  for (const Share& share : shares) {
    placed.push_back(file_tensor_of(tensors[share.tensor], share.part));
  }
  const FileHeader header = place_tensors(std::move(placed), {{"format", "pt"}});
  return {std::move(shares), header_text(header), header.file_bytes};
}

RankFilePlan plan_shared_part(std::span<const SavedTensor> tensors, std::vector<Share> shares) {
  RankFilePlan out;
  for (const Share& share : shares) {
    out.bytes += bytes_of(tensors[share.tensor].type.dtype, share.part.shape);
  }
  out.shares = std::move(shares);
  return out;
}

FileHeader header_of_shares(std::span<const SavedTensor> tensors, std::span<const Share> shares) {
  FileHeader out;
  for (const Share& share : shares) {
    FileTensor tensor = file_tensor_of(tensors[share.tensor], share.part);
    tensor.begin = out.file_bytes;
    out.file_bytes += bytes_of(tensor.dtype, tensor.shape);
    tensor.end = out.file_bytes;
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

std::optional<SavedFile> write_rank_file(Files& files, const std::string& folder, OutputFile& file,
                                         const RankFilePlan& plan, Pieces shares, std::int64_t rank,
                                         std::int64_t world) {
  if (plan.bytes == 0) return std::nullopt;
  return write_file(files, folder, file, plan, rank, world, [&](ChunkWriter& writer) {
    for (const auto& share : shares) writer.add(share);
  });
}

std::optional<SavedFile> write_rank_file(Files& files, const std::string& folder,
                                         const RankFilePlan& plan, Pieces shares, std::int64_t rank,
                                         std::int64_t world) {
  if (plan.bytes == 0) return std::nullopt;
  return write_rank_file(files, folder, *new_file(files, folder, rank, world), plan, shares, rank,
                         world);
}

std::optional<SavedFile> write_rank_file(Files& files, const std::string& folder,
                                         const RankFilePlan& plan, const ShareReader& read,
                                         std::int64_t rank, std::int64_t world) {
  if (plan.bytes == 0) return std::nullopt;
  const auto file = new_file(files, folder, rank, world);
  return write_file(files, folder, *file, plan, rank, world, [&](ChunkWriter& writer) {
    for (const Share& share : plan.shares) {
      writer.add(read(share));
      writer.settle();
    }
  });
}

RankFile::RankFile(Files& files, std::string path, const SavedFile& saved,
                   const std::optional<std::string>& hashes_path)
    : path_(std::move(path)), file_(files.open(path_)) {
  check(files, saved, hashes_path);
  read_header();
}

RankFile::RankFile(Files& files, std::string path, std::unique_ptr<InputFile> file,
                   FileHeader header, const SavedFile& saved,
                   const std::optional<std::string>& hashes_path)
    : path_(std::move(path)), file_(std::move(file)) {
  check(files, saved, hashes_path);
  use_header(std::move(header));
}

void RankFile::check(Files& files, const SavedFile& saved,
                     const std::optional<std::string>& hashes_path) {
  if (file_->bytes() != saved.bytes) {
    fail<FileError>(kWhere, path_, ": ", file_->bytes(), " bytes, and ", saved.bytes,
                    " were written");
  }
  if (!hashes_path) return;
  const std::string text = read_text(files, *hashes_path, kMostHashBytes);
  if (hash_of(text) != saved.hashes) {
    fail<FileError>(kWhere, *hashes_path, ": damaged: not the hashes that the manifest names");
  }
  hashes_ = FileHashes::parse(*hashes_path, text);
  if (hashes_->file_bytes != saved.bytes) {
    fail<FileError>(kWhere, *hashes_path, ": hashes of a file of ", hashes_->file_bytes, " bytes");
  }
}

void RankFile::use_header(FileHeader header) {
  header_ = std::move(header);
  for (const FileTensor& each : header_.tensors) by_name_[each.name] = &each;
}

std::uint64_t RankFile::chunk_end(std::uint64_t chunk) const {
  return std::min((chunk + 1) * kChunkBytes, file_->bytes());
}

void RankFile::read_header() {
  std::string text(std::min(kLengthBytes, file_->bytes()), '\0');
  file_->read(0, std::as_writable_bytes(std::span(text)));
  const std::uint64_t bytes = header_bytes(path_, text, file_->bytes());
  if (!verified()) {
    text.resize(bytes);
    file_->read(0, std::as_writable_bytes(std::span(text)));
  } else {
    text.clear();
    for (std::uint64_t chunk = 0; text.size() < bytes; ++chunk) {
      text.resize(chunk_end(chunk));
      read_chunk(chunk, std::as_writable_bytes(std::span(text)).subspan(chunk_begin(chunk)));
    }
  }
  use_header(parse_header(path_, text, file_->bytes()));
}

const FileTensor& RankFile::tensor(const SavedTensor& saved, const Part& part) const {
  const FileTensor wanted = file_tensor_of(saved, part);
  const auto place = by_name_.find(wanted.name);
  if (place == by_name_.end()) {
    fail<FileError>(kWhere, path_, ": has no '", wanted.name, "', which its rank was to write");
  }
  const FileTensor* found = place->second;
  if (found->dtype != wanted.dtype || found->shape != wanted.shape) {
    fail<FileError>(kWhere, path_, ": '", wanted.name, "' is ",
                    sizes_text(found->dtype, found->shape), ", not ",
                    sizes_text(wanted.dtype, wanted.shape));
  }
  return *found;
}

void RankFile::read_chunk(std::uint64_t chunk, std::span<std::byte> into) const {
  file_->read(chunk_begin(chunk), into);
  if (!hashes_ || hash_of(into) == hashes_->chunks[chunk]) return;
  fail<FileError>(kWhere, path_, ": damaged between the bytes ", chunk_begin(chunk), " and ",
                  chunk_end(chunk), ", where ", tensors_in(chunk_begin(chunk), chunk_end(chunk)));
}

void RankFile::read_unverified(std::uint64_t offset, std::span<std::byte> into) const {
  file_->read(offset, into);
}

std::string RankFile::tensors_in(std::uint64_t begin, std::uint64_t end) const {
  constexpr std::size_t kMostNames = 5;
  std::vector<std::string> names;
  std::size_t more = 0;
  for (const FileTensor& each : header_.tensors) {
    if (each.begin >= end || each.end <= begin) continue;
    names.size() < kMostNames ? names.push_back(concat('\'', each.name, '\'')) : void(++more);
  }
  if (names.empty()) return "the header is";
  return concat(join(names, ", "), more > 0 ? concat(" and ", more, " more") : "",
                names.size() + more > 1 ? " are" : " is");
}

}  // namespace intarsia::checkpoint
