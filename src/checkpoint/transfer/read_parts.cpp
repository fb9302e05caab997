#include "checkpoint/transfer/read_parts.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/text.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/plan/copy_runs.h"
#include "checkpoint/plan/write_plan.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";

/// A part that some rank wrote, and what is wanted of it.
struct Source {
  const Wanted* wanted;
  Part part;
};

using SourcesByRank = std::map<std::int64_t, std::vector<Source>>;

/// Bytes of a file that are wanted, in the order of the file.
struct Copy {
  std::uint64_t begin;  // where the source's tensor begins in the file
  CopyRuns runs;
  std::byte* into;

  bool done() const { return !runs.run(); }
  std::uint64_t at() const { return begin + runs.run()->from; }
};

SourcesByRank sources_of(const Manifest& manifest, const WritePlan& plan,
                         std::span<const Wanted> wanted) {
  SourcesByRank out;
  for (const Wanted& each : wanted) {
    const SavedTensor& saved = manifest.tensors[each.tensor];
    std::int64_t found = 0;
    for (Holder& holder : plan.holders(each.tensor, each.part)) {
      found += CopyRuns(holder.part, each.part, 1).numel();
      out[holder.rank].push_back({&each, std::move(holder.part)});
    }
    if (found != each.part.numel()) {
      fail<FileError>(kWhere, "of '", saved.name, "' ", each.part, ", ", found, " of ",
                      each.part.numel(), " elements were saved");
    }
  }
  return out;
}

/// Copies what a chunk has of one copy.
void copy_from_chunk(std::span<const std::byte> chunk, std::uint64_t begin, Copy& copy) {
  const std::uint64_t end = begin + chunk.size();
  while (const auto run = copy.runs.run()) {
    const std::uint64_t at = copy.begin + run->from;
    if (at >= end) return;
    const std::uint64_t bytes = std::min(run->bytes, end - at);
    std::memcpy(copy.into + run->to, chunk.data() + (at - begin), bytes);
    copy.runs.advance(bytes);
  }
}

/// The first chunk of which something is wanted. REQUIRES: the first of them is not done. They may
/// be of the same tensor, and in any order then.
std::uint64_t next_chunk(std::span<const Copy> copies) {
  std::uint64_t at = copies[0].at();
  for (const Copy& copy : copies) {
    if (copy.begin > at) break;
    if (!copy.done()) at = std::min(at, copy.at());
  }
  return at / kChunkBytes;
}

/// Whether a chunk is nothing but the next bytes of the first copy: it is then read to where they
/// belong.
bool is_next_of_first(const RankFile& file, std::uint64_t chunk, std::span<const Copy> copies) {
  const auto run = copies[0].runs.run();
  return copies[0].at() == file.chunk_begin(chunk) &&
         run->bytes >= file.chunk_end(chunk) - file.chunk_begin(chunk) &&
         (copies.size() == 1 || copies[1].begin >= file.chunk_end(chunk));
}

void read_by_chunks(const RankFile& file, std::span<Copy> copies, std::vector<std::byte>& buffer) {
  while (!copies.empty()) {
    if (copies[0].done()) {
      copies = copies.subspan(1);
      continue;
    }
    const std::uint64_t chunk = next_chunk(copies);
    const std::uint64_t begin = file.chunk_begin(chunk);
    const std::uint64_t bytes = file.chunk_end(chunk) - begin;
    if (is_next_of_first(file, chunk, copies)) {
      file.read_chunk(chunk, {copies[0].into + copies[0].runs.run()->to, bytes});
      copies[0].runs.advance(bytes);
      continue;
    }
    buffer.resize(bytes);
    file.read_chunk(chunk, buffer);
    for (Copy& copy : copies) {
      if (copy.begin >= begin + bytes) break;
      copy_from_chunk(buffer, begin, copy);
    }
  }
}

/// Long runs are read alone, straight to where they belong; short ones by chunks, of which there
/// are fewer than of runs.
void read_unverified(const RankFile& file, std::span<Copy> copies, std::vector<std::byte>& buffer) {
  constexpr std::uint64_t kLong = std::uint64_t{64} << 10;
  const auto first_short = std::stable_partition(
      copies.begin(), copies.end(),
      [](const Copy& copy) { return !copy.done() && copy.runs.run()->bytes >= kLong; });
  for (Copy& copy : std::span(copies.begin(), first_short)) {
    while (const auto run = copy.runs.run()) {
      file.read_unverified(copy.begin + run->from, {copy.into + run->to, run->bytes});
      copy.runs.advance(run->bytes);
    }
  }
  read_by_chunks(file, {first_short, copies.end()}, buffer);
}

void read_from(const StepFiles& files, const std::string& folder, const Manifest& manifest,
               std::int64_t rank, const std::vector<Source>& sources, bool verify,
               std::vector<std::byte>& buffer) {
  const auto saved = std::lower_bound(
      manifest.files.begin(), manifest.files.end(), rank,
      [](const SavedFile& each, std::int64_t wanted) { return each.rank < wanted; });
  if (saved == manifest.files.end() || saved->rank != rank) {
    fail<FileError>(kWhere, folder, ": the manifest names no file of rank ", rank,
                    ", which was to write '", manifest.tensors[sources[0].wanted->tensor].name,
                    "'");
  }
  const RankFile file = files.open(*saved, verify);
  std::vector<Copy> copies;
  for (const Source& source : sources) {
    const SavedTensor& tensor = manifest.tensors[source.wanted->tensor];
    copies.push_back({file.tensor(tensor, source.part).begin,
                      CopyRuns(source.part, source.wanted->part, element_bytes(tensor.type.dtype)),
                      source.wanted->into.data()});
  }
  std::sort(copies.begin(), copies.end(),
            [](const Copy& a, const Copy& b) { return a.begin < b.begin; });
  file.verified() ? read_by_chunks(file, copies, buffer) : read_unverified(file, copies, buffer);
}

}  // namespace

StepFiles::StepFiles(Files& files, std::string folder, const Manifest& manifest)
    : files_(files), folder_(std::move(folder)), manifest_(manifest), plan_(manifest.tensors) {
  if (!manifest.data_folder.empty()) folder_ = join_path(folder_, manifest.data_folder);
  if (manifest.hf_file_bytes) shared_.emplace(manifest.tensors, *manifest.hf_file_bytes);
}

RankFile StepFiles::open(const SavedFile& saved, bool verify) const {
  if (!manifest_.file_names.empty()) {
    const auto& name = manifest_.file_names[static_cast<std::size_t>(saved.rank)];
    return RankFile(files_, join_path(folder_, name), saved, std::nullopt);
  }
  std::optional<std::string> hashes;
  if (verify) hashes = join_path(folder_, hash_file_name(saved.rank, manifest_.world));
  if (!shared_) {
    return RankFile(files_, join_path(folder_, data_file_name(saved.rank, manifest_.world)), saved,
                    hashes);
  }
  const auto shares = plan_.of_rank(saved.rank);
  return RankFile(files_, concat(join_path(folder_, "model*.safetensors"), ", rank ", saved.rank),
                  shared_->input(files_, folder_, shares),
                  header_of_shares(manifest_.tensors, shares), saved, hashes);
}

void read_parts(Files& files, const std::string& folder, const Manifest& manifest,
                std::span<const Wanted> wanted, const ReadOptions& options) {
  const StepFiles opened(files, folder, manifest);
  const SourcesByRank sources = sources_of(manifest, opened.plan(), wanted);
  std::vector<std::byte> buffer;
  // All files, from the first that is to be read on.
  const auto first = sources.lower_bound(options.first);
  for (auto each = first; each != sources.end(); ++each) {
    read_from(opened, folder, manifest, each->first, each->second, options.verify, buffer);
  }
  for (auto each = sources.begin(); each != first; ++each) {
    read_from(opened, folder, manifest, each->first, each->second, options.verify, buffer);
  }
}

}  // namespace intarsia::checkpoint
