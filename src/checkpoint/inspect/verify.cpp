#include "checkpoint/inspect/verify.h"

#include <optional>
#include <set>

#include "base/text.h"
#include "checkpoint/format/hashes.h"
#include "checkpoint/format/hugging_face.h"
#include "checkpoint/session/agree.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/transfer/read_parts.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

class Verify {
 public:
  Verify(Files& files, const std::string& folder, const Progress& progress)
      : files_(files), folder_(folder), progress_(progress) {}

  std::vector<std::string> run() {
    attempt([&] {
      manifest_ = read_manifest(files_, folder_);
      is_read_ = true;
    });
    if (!is_read_) return wrong_;
    for (const SavedFile& file : manifest_.files) all_ += file.bytes;
    const StepFiles step(files_, folder_, manifest_);
    std::set<std::string> known{std::string(kManifestName)};
    for (const SavedFile& saved : manifest_.files) {
      if (!step.shared()) known.insert(data_file_name(saved.rank, manifest_.world));
      known.insert(hash_file_name(saved.rank, manifest_.world));
      attempt([&] { check_file(step, saved); });
    }
    if (step.shared()) check_shared(*step.shared(), known);
    check_writers(step.plan());
    known.insert(manifest_.data_folder);
    for (const std::string& folder : std::set<std::string>{folder_, step.folder()}) {
      for (const std::string& name : files_.list(folder)) {
        if (known.contains(name)) continue;
        wrong_.push_back(concat(join_path(folder, name), ": no part of it"));
      }
    }
    return wrong_;
  }

 private:
  template <class Work>
  void attempt(const Work& work) {
    try {
      work();
    } catch (const FileError& error) {
      wrong_.emplace_back(without_function(error.what()));
    }
  }

  void check_file(const StepFiles& step, const SavedFile& saved) {
    const RankFile file = step.open(saved, /*verify=*/true);
    std::vector<std::byte> buffer;
    for (std::uint64_t chunk = 0; chunk < chunks_in(saved.bytes); ++chunk) {
      buffer.resize(file.chunk_end(chunk) - file.chunk_begin(chunk));
      attempt([&] { file.read_chunk(chunk, buffer); });
      done_ += buffer.size();
      if (progress_) progress_(done_, all_);
    }
    const auto shares = step.plan().of_rank(saved.rank);
    for (const Share& share : shares) file.tensor(manifest_.tensors[share.tensor], share.part);
    if (file.header().tensors.size() != shares.size()) {
      wrong_.push_back(concat(file.path(), ": has ", file.header().tensors.size(),
                              " tensors, and its rank was to write ", shares.size()));
    }
  }

  /// What is in files of the hf form beside the tensors.
  void check_shared(const SharedFiles& shared, std::set<std::string>& known) {
    for (std::size_t i = 0; i < shared.count(); ++i) {
      const std::string path = join_path(folder_, shared.name(i));
      attempt([&] { shared.check(*files_.open(path), path, i); });
      known.insert(shared.name(i));
    }
    const std::string index = shared.index();
    if (index.empty()) return;
    const std::string path = join_path(folder_, kHfIndexName);
    known.insert(std::string(kHfIndexName));
    attempt([&] {
      if (read_text(files_, path, index.size() + 1) != index) {
        fail<FileError>("checkpoint", path, ": not the index of these files");
      }
    });
  }

  /// Ranks that have something to write have a file.
  void check_writers(const WritePlan& plan) {
    std::set<std::int64_t> writers;
    for (const SavedFile& saved : manifest_.files) writers.insert(saved.rank);
    for (std::int64_t rank = 0; rank < manifest_.world; ++rank) {
      if (writers.contains(rank) || plan.of_rank(rank).empty()) continue;
      wrong_.push_back(concat(folder_, ": the manifest names no file of rank ", rank));
    }
  }

  Files& files_;
  const std::string& folder_;
  const Progress& progress_;
  Manifest manifest_;
  bool is_read_ = false;
  std::vector<std::string> wrong_;
  std::uint64_t all_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace

std::vector<std::string> verify_step(Files& files, const std::string& folder,
                                     const Progress& progress) {
  return Verify(files, folder, progress).run();
}

}  // namespace intarsia::checkpoint
