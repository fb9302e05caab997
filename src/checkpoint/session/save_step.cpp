#include "checkpoint/session/save_step.h"

#include <array>
#include <cmath>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/format/hashes.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/plan/write_plan.h"
#include "checkpoint/session/agree.h"
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
  Save(Files& files, Ranks& ranks, const std::string& root, const StateMaker& make,
       const SaveOptions& options)
      : files_(files), ranks_(ranks), root_(root), make_(make), options_(options) {}

  void run() {
    try {
      const Json opened = agree([&] { return prepare(); },
                                [&](const std::vector<Json>& said) { return open(said); });
      folder_ = join_path(root_, opened["folder"].get<std::string>());
      agree([&] { return look(opened["nonce"].get<std::string>()); },
            [&](const std::vector<Json>& said) { return compare_replicas(said); });
      agree([&] { return write(); }, [&](const std::vector<Json>& said) { return commit(said); });
    } catch (...) {
      clean_up();
      throw;
    }
  }

 private:
  Json agree(const Work& work, const Decide& decide) {
    return checkpoint::agree(ranks_, work, decide, [&] {
      return concat(known_ ? concat("step ", state_.step) : "the step", " was not saved in ", root_,
                    ": ");
    });
  }

  Json prepare() {
    state_ = make_();
    known_ = true;
    target_ = join_path(root_, step_name(state_.step));
    if (state_.step < 0) fail<ValueError>(kWhere, "the step is ", state_.step, ", less than 0");
    check_tensors();
    plan_.emplace(state_.tensors);
    shares_ = plan_->of_rank(ranks_.rank());
    const Manifest same = manifest();
    const std::string values = values_text(same);
    return {{"tensors", hash_to_text(hash_of(same.to_text()))},
            {"values", hash_to_text(hash_of(values))},
            {"step", state_.step},
            {"root", root_},
            {"replace", options_.replace},
            {"check_replicas", options_.check_replicas},
            {"bytes", rank_file_bytes(state_.tensors, shares_)}};
  }

  /// Without the files.
  Manifest manifest() const {
    Manifest out;
    out.step = state_.step;
    out.world = ranks_.size();
    out.tensors.assign(state_.tensors.begin(), state_.tensors.end());
    out.values = state_.values;
    return out;
  }

  void check_tensors() const {
    if (state_.pieces.size() != state_.tensors.size()) {
      fail<ValueError>(kWhere, state_.pieces.size(), " pieces of ", state_.tensors.size(),
                       " tensors");
    }
    std::set<std::string_view> names;
    for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
      const auto& [name, type] = state_.tensors[t];
      if (!names.insert(name).second)
        fail<ValueError>(kWhere, "two tensors are called '", name, "'");
      if (type.layout.has_partial()) {
        fail<ValueError>(kWhere, "'", name, "' is a partial value (", type.layout,
                         "), of which no rank has the numbers; redistribute it first");
      }
      if (type.layout.mesh().highest() >= ranks_.size()) {
        fail<ValueError>(kWhere, "'", name, "' is laid out over ", type.layout.mesh(), ", and ",
                         ranks_.size(), " ranks save");
      }
      const auto at = type.layout.mesh().coordinate_of(ranks_.rank());
      const std::uint64_t bytes =
          at ? bytes_of(type.dtype, local_shape(type.layout, type.shape, *at)) : 0;
      if (state_.pieces[t].size() != bytes) {
        fail<ValueError>(kWhere, "the piece of '", name, "' has ", state_.pieces[t].size(),
                         " bytes, and ", type, " has ", bytes, " here");
      }
    }
  }

  /// ValueError for what JSON cannot hold.
  std::string values_text(const Manifest& manifest) const {
    for (const auto& [name, value] : manifest.values.items()) check_value(name, value);
    return manifest.values.dump();
  }

  static void check_value(const std::string& name, const Json& value) {
    if (value.is_number_float() && !std::isfinite(value.get<double>())) {
      fail<ValueError>(kWhere, "the value '", name, "' is ", value.get<double>(),
                       ", which JSON cannot hold; save it as a tensor");
    }
    if (value.is_structured()) {
      for (const auto& [key, inner] : value.items()) check_value(concat(name, '.', key), inner);
    }
    if (value.is_binary() || value.is_discarded()) {
      fail<ValueError>(kWhere, "the value '", name, "' is none that JSON can hold");
    }
    try {
      if (value.is_string()) static_cast<void>(value.dump());
    } catch (const Json::exception&) {
      fail<ValueError>(kWhere, "the value '", name, "' is a text that is not UTF-8");
    }
  }

  /// Rank 0: makes the folder, if all ranks want to save the same.
  Json open(const std::vector<Json>& said) {
    for (const auto& [what, text] :
         {std::pair("step", "another step"), std::pair("root", "to another folder"),
          std::pair("replace", "with another `replace`"),
          std::pair("check_replicas", "with another `check_replicas`"),
          std::pair("values", "other values"),
          std::pair("tensors", "tensors of other names, sizes, types or layouts")}) {
      for (std::size_t rank = 1; rank < said.size(); ++rank) {
        if (said[rank][what] == said[0][what]) continue;
        fail<ValueError>(kWhere, "rank ", rank, " saves ", text, " than rank 0");
      }
    }
    if (!files_.exists(root_)) {
      fail<FileError>(kWhere, root_, ": no such folder; make it first");
    }
    if (!options_.replace && files_.exists(target_)) {
      fail<ValueError>(kWhere, target_, " is there already; pass `replace` to replace it");
    }
    std::uint64_t bytes = kRoom;
    for (const Json& each : said) bytes += each["bytes"].get<std::uint64_t>();
    if (const std::uint64_t free = files_.free_bytes(root_); free < bytes) {
      fail<FileError>(kWhere, root_, ": ", bytes, " bytes are needed, and ", free, " are free");
    }
    const std::string nonce = hash_to_text(random_number());
    const std::string name = concat('.', step_name(state_.step), ".saving-", nonce);
    made_ = join_path(root_, name);
    files_.make_folder(*made_);
    files_.create(join_path(*made_, kNonceName))->append(std::as_bytes(std::span(nonce)));
    return {{"folder", name}, {"nonce", nonce}};
  }

  /// Every rank, before its first byte: that it sees the folder that rank 0 made.
  Json look(const std::string& nonce) {
    const std::string path = join_path(folder_, kNonceName);
    std::string found;
    try {
      found = read_text(files_, path, nonce.size());
    } catch (const FileError&) {
    }
    if (found != nonce) {
      fail<FileError>(kWhere, "on ", ranks_.host(), " ", root_,
                      " is not the folder that rank 0 sees; save where all ranks see the same");
    }
    Json hashes = Json::object();
    if (options_.check_replicas) {
      for (const auto& [line, hash] : line_hashes()) {
        hashes[std::to_string(line)] = hash_to_text(hash);
      }
    }
    return {{"host", ranks_.host()}, {"lines", hashes}};
  }

  std::map<std::size_t, std::uint64_t> line_hashes() const {
    std::map<std::size_t, std::uint64_t> out;
    for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
      const std::size_t line = plan_->line_of(t);
      if (plan_->sharers(line) == 1 || state_.pieces[t].empty()) continue;
      std::uint64_t& hash = out[line];
      const std::array<std::uint64_t, 2> both{hash, hash_of(state_.pieces[t])};
      hash = hash_of(std::as_bytes(std::span(both)));
    }
    return out;
  }

  /// Rank 0.
  Json compare_replicas(const std::vector<Json>& said) const {
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      for (const auto& [line, hash] : said[rank]["lines"].items()) {
        const auto first = *plan_->first_sharer(std::stoul(line), static_cast<std::int64_t>(rank));
        if (said[static_cast<std::size_t>(first)]["lines"][line] == hash) continue;
        fail<ValueError>(kWhere, "ranks ", first, " and ", rank,
                         " hold different values of tensors that should be equal: ",
                         tensors_of(std::stoul(line)),
                         "; find where they parted, or pass check_replicas = false");
      }
    }
    return nullptr;
  }

  std::string tensors_of(std::size_t line) const {
    constexpr std::size_t kMostNames = 3;
    std::vector<std::string> names;
    for (std::size_t t = 0; t < state_.tensors.size(); ++t) {
      if (plan_->line_of(t) == line) names.push_back(concat('\'', state_.tensors[t].name, '\''));
    }
    const std::size_t more = names.size() > kMostNames ? names.size() - kMostNames : 0;
    names.resize(names.size() - more);
    return concat(more > 0 ? "one of " : "", join(names, ", "),
                  more > 0 ? concat(" and ", more, " more") : "");
  }

  Json write() {
    const auto file = write_rank_file(files_, folder_, state_.tensors, shares_, state_.pieces,
                                      ranks_.rank(), ranks_.size());
    if (!file) return nullptr;
    return {{"bytes", file->bytes}, {"hashes", hash_to_text(file->hashes)}};
  }

  /// Rank 0: all is written; the manifest and one rename make it a checkpoint.
  Json commit(const std::vector<Json>& said) {
    Manifest manifest = this->manifest();
    for (std::size_t rank = 0; rank < said.size(); ++rank) {
      if (said[rank].is_null()) continue;
      const Field file{said[rank], "a rank's answer", {}};
      manifest.files.push_back({static_cast<std::int64_t>(rank),
                                static_cast<std::uint64_t>(file.at("bytes").integer()),
                                file.at("hashes").hash()});
    }
    files_.remove(join_path(folder_, kNonceName));
    write_text(files_, join_path(folder_, kManifestName), manifest.to_text());
    files_.sync_folder(folder_);
    const bool replaces = options_.replace && files_.exists(target_);
    replaces ? files_.exchange(folder_, target_) : files_.rename(folder_, target_);
    const auto old = std::exchange(made_, std::nullopt);
    files_.sync_folder(root_);
    // Not before: a crash could bring the old names back.
    if (replaces) made_ = old;
    clean_up();
    return nullptr;
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
  const StateMaker& make_;
  const SaveOptions& options_;
  StepState state_;
  bool known_ = false;
  std::string target_;
  std::optional<WritePlan> plan_;
  std::vector<Share> shares_;
  std::string folder_;
  std::optional<std::string> made_;
};

}  // namespace

void save_step(Files& files, Ranks& ranks, const std::string& root, const StateMaker& make,
               const SaveOptions& options) {
  Save(files, ranks, root, make, options).run();
}

}  // namespace intarsia::checkpoint
