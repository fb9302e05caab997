#include "checkpoint/session/save_step.h"

#include <optional>
#include <random>
#include <utility>

#include "base/text.h"
#include "checkpoint/format/hashes.h"
#include "checkpoint/format/hugging_face.h"
#include "checkpoint/session/agree.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/transfer/shared_files.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";
/// Stands in the folder while it is written; by it ranks see that it is the same folder.
constexpr std::string_view kNonceName = "nonce";
/// Room for the manifest and for what file systems take beside the bytes.
constexpr std::uint64_t kRoom = std::uint64_t{1} << 20;

std::uint64_t random_number() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

class Save {
 public:
  Save(Files& files, Ranks& ranks, const std::string& root, std::int64_t step,
       const LocalStepMaker& make, const SaveOptions& options)
      : files_(files), ranks_(ranks), root_(root), step_(step), make_(make), options_(options) {}

  void run() {
    try {
      const Json opened = agree([&] { return prepare(); },
                                [&](const std::vector<Json>& said) { return open(said); });
      folder_ = join_path(root_, opened["folder"].get<std::string>());
      agree([&] { return write(opened["nonce"].get<std::string>()); },
            [&](const std::vector<Json>& said) { return commit(said); });
    } catch (...) {
      clean_up();
      throw;
    }
  }

 private:
  Json agree(const Work& work, const Decide& decide) {
    return checkpoint::agree(ranks_, work, decide, [&] {
      return concat("step ", step_, " was not saved in ", root_, ": ");
    });
  }

  Json prepare() {
    if (step_ < 0) fail<ValueError>(kWhere, "the step is ", step_, ", less than 0");
    target_ = join_path(root_, step_name(step_));
    local_.emplace(make_());
    Json replicas = Json::object();
    for (const auto& [line, hash] : local_->replica_hashes()) {
      replicas[std::to_string(line)] = hash_to_text(hash);
    }
    tensor_lines_ = tensor_lines(local_->state().tensors);
    if (const auto bytes = local_->state().hf_file_bytes) {
      shared_.emplace(local_->state().tensors, *bytes);
    }
    return {{"tensors", hash_to_text(hash_of(tensor_lines_))},
            {"values", hash_to_text(hash_of(local_->state().values.dump()))},
            {"step", step_},
            {"root", root_},
            {"form", local_->state().hf_file_bytes.value_or(0)},
            {"replace", options_.replace},
            {"check_replicas", options_.check_replicas},
            {"replicas", std::move(replicas)},
            {"bytes", local_->file().bytes}};
  }

  /// Rank 0: makes the folder, if all ranks want to save the same.
  Json open(const std::vector<Json>& said) {
    for (const auto& [what, text] :
         {std::pair("step", "another step"), std::pair("root", "to another folder"),
          std::pair("form", "in another form"), std::pair("replace", "with another `replace`"),
          std::pair("check_replicas", "with another `check_replicas`"),
          std::pair("values", "other values"),
          std::pair("tensors", "tensors of other names, sizes, types or layouts")}) {
      for (std::size_t rank = 1; rank < said.size(); ++rank) {
        if (said[rank][what] == said[0][what]) continue;
        fail<ValueError>(kWhere, "rank ", rank, " saves ", text, " than rank 0");
      }
    }
    compare_replicas(said);
    const bool renames = files_.renames(root_);
    if (renames && !files_.exists(root_)) {
      fail<FileError>(kWhere, root_, ": no such folder; make it first");
    }
    const bool is_there = files_.exists(renames ? target_ : join_path(target_, kManifestName));
    if (!options_.replace && is_there) {
      fail<ValueError>(kWhere, target_, " is there already; pass `replace` to replace it");
    }
    std::uint64_t bytes = kRoom;
    for (const Json& each : said) bytes += each["bytes"].get<std::uint64_t>();
    if (const std::uint64_t free = files_.free_bytes(root_); free < bytes) {
      fail<FileError>(kWhere, root_, ": ", bytes, " bytes are needed, and ", free, " are free");
    }
    const std::string nonce = hash_to_text(random_number());
    const std::string name = renames ? concat('.', step_name(step_), ".saving-", nonce)
                                     : concat(step_name(step_), '/', nonce);
    made_ = join_path(root_, name);
    files_.make_folder(*made_);
    const auto file = files_.create(join_path(*made_, kNonceName));
    file->append(std::as_bytes(std::span(nonce)));
    if (!renames) file->sync();  // which puts it there
    if (shared_) make_shared_files();
    return {{"folder", name}, {"nonce", nonce}};
  }

  /// Rank 0: the files into which all ranks will write, with what stands before the tensors.
  void make_shared_files() {
    for (std::size_t i = 0; i < shared_->count(); ++i) {
      const std::string header = shared_->header(i);
      made_files_.push_back(files_.create(join_path(*made_, shared_->name(i))));
      made_files_.back()->append(std::as_bytes(std::span(header)));
    }
    const std::string index = shared_->index();
    if (!index.empty()) write_text(files_, join_path(*made_, kHfIndexName), index);
  }

  /// Every rank, before its first byte: that it sees the folder that rank 0 made.
  void look(const std::string& nonce) const {
    const std::string path = join_path(folder_, kNonceName);
    if (!files_.exists(path) || read_text(files_, path, nonce.size()) != nonce) {
      fail<FileError>(kWhere, "on ", ranks_.host(), " ", root_,
                      " is not the folder that rank 0 sees; save where all ranks see the same");
    }
  }

  /// Rank 0.
  void compare_replicas(const std::vector<Json>& said) const {
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      for (const auto& [line, hash] : said[rank]["replicas"].items()) {
        const auto first =
            *local_->plan().first_sharer(std::stoul(line), static_cast<std::int64_t>(rank));
        if (said[static_cast<std::size_t>(first)]["replicas"][line] == hash) continue;
        fail<ValueError>(kWhere, "ranks ", first, " and ", rank,
                         " hold different values of tensors that should be equal: ",
                         local_->tensors_of_line(std::stoul(line)),
                         "; find where they parted, or pass check_replicas = false");
      }
    }
  }

  Json write(const std::string& nonce) {
    look(nonce);
    const auto file = write_file();
    for (const auto& each : made_files_) each->sync();
    if (!file) return nullptr;
    return {{"bytes", file->bytes}, {"hashes", hash_to_text(file->hashes)}};
  }

  std::optional<SavedFile> write_file() {
    if (!shared_) {
      return write_rank_file(files_, folder_, local_->file(), local_->shares(), ranks_.rank(),
                             ranks_.size());
    }
    const auto output = shared_->output(files_, folder_, local_->file().shares);
    return write_rank_file(files_, folder_, *output, local_->file(), local_->shares(),
                           ranks_.rank(), ranks_.size());
  }

  /// Rank 0: all is written; the manifest makes it a checkpoint, with one rename where that can be.
  Json commit(const std::vector<Json>& said) {
    std::vector<SavedFile> files;
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      if (said[rank].is_null()) continue;
      const Field file{said[rank], "a rank's answer", {}};
      files.push_back({static_cast<std::int64_t>(rank),
                       static_cast<std::uint64_t>(file.at("bytes").integer()),
                       file.at("hashes").hash()});
    }
    files_.remove(join_path(folder_, kNonceName));
    const bool renames = files_.renames(root_);
    const std::string text = manifest_text(tensor_lines_, step_, ranks_.size(), files,
                                           local_->state().values, local_->state().hf_file_bytes,
                                           renames ? "" : folder_.substr(target_.size() + 1));
    renames ? rename_to_target(text) : publish_in_target(text);
    clean_up();
    return nullptr;
  }

  void rename_to_target(const std::string& manifest) {
    write_text(files_, join_path(folder_, kManifestName), manifest);
    files_.sync_folder(folder_);
    const bool replaces = options_.replace && files_.exists(target_);
    replaces ? files_.exchange(folder_, target_) : files_.rename(folder_, target_);
    const auto old = std::exchange(made_, std::nullopt);
    files_.sync_folder(root_);
    // Not before: a crash could bring the old names back.
    if (replaces) made_ = old;
  }

  void publish_in_target(const std::string& manifest) {
    const std::string path = join_path(target_, kManifestName);
    std::optional<std::string> old;  // the files of the step that is replaced
    if (options_.replace && files_.exists(path)) {
      try {
        old = join_path(target_, read_manifest(files_, target_).data_folder);
      } catch (const FileError&) {  // NOLINT(bugprone-empty-catch): damaged; swept later
      }
    }
    files_.publish(path, manifest, options_.replace);
    made_ = old;
  }

  /// Rank 0: removes what it made and nobody will read. What cannot be removed now is swept later.
  void clean_up() noexcept {
    if (!made_) return;
    try {
      files_.remove(*made_);
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
    made_.reset();
  }

  Files& files_;
  Ranks& ranks_;
  const std::string& root_;
  std::int64_t step_;
  const LocalStepMaker& make_;
  const SaveOptions& options_;
  std::optional<LocalStep> local_;
  std::optional<SharedFiles> shared_;  // of the hf form
  std::vector<std::unique_ptr<OutputFile>> made_files_;
  std::string tensor_lines_;
  std::string target_;
  std::string folder_;
  std::optional<std::string> made_;
};

}  // namespace

void save_local_step(Files& files, Ranks& ranks, const std::string& root, std::int64_t step,
                     const LocalStepMaker& make, const SaveOptions& options) {
  Save(files, ranks, root, step, make, options).run();
}

void save_step(Files& files, Ranks& ranks, const std::string& root, std::int64_t step,
               const StateMaker& make, const SaveOptions& options) {
  const auto local = [&] {
    LocalStep out(make(), ranks.rank(), ranks.size());
    if (options.check_replicas) out.hash_replicas();
    return out;
  };
  save_local_step(files, ranks, root, step, local, options);
}

}  // namespace intarsia::checkpoint
