// Faults of real processes and files: what is loaded afterwards is the old step, the new step, or
// an error that names the file. Prints a count of each; exit code 1 if anything else was seen.
//
//     checkpoint_faults kills FOLDER [STRIDE]   a process is killed (SIGKILL) at every write, sync,
//                                               rename and removal of a save, in several worlds;
//                                               STRIDE: at every so many of them
//     checkpoint_faults flips FOLDER COUNT      bits flipped, blocks zeroed, files truncated,
//                                               exchanged and removed, anywhere
//     checkpoint_faults full FOLDER             saves on a small file system until it is full
//     checkpoint_faults save FOLDER STEP VERSION     two ranks save or replace a step, in any
//     store;
//                                               exit code 3, and the error, if they cannot
//     checkpoint_faults check FOLDER            which version each step there is
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/store/all_files.h"
#include "checkpoint/test_state.h"

namespace intarsia::testing {
namespace {

namespace fs = std::filesystem;
using checkpoint::Files;
using checkpoint::local_files;
using checkpoint::Ranks;

/// The files of this machine, until the n-th operation that changes something ends the process.
class KillingFiles : public Files {
 public:
  explicit KillingFiles(std::int64_t left) : left_(left) {}

  std::unique_ptr<checkpoint::OutputFile> create(const std::string& path) override {
    count();
    return std::make_unique<Output>(*this, local_files().create(path));
  }
  std::unique_ptr<checkpoint::OutputFile> open_to_write(const std::string& path) override {
    return std::make_unique<Output>(*this, local_files().open_to_write(path));
  }
  std::unique_ptr<checkpoint::InputFile> open(const std::string& path) override {
    return local_files().open(path);
  }
  bool exists(const std::string& path) override { return local_files().exists(path); }
  std::vector<std::string> list(const std::string& folder) override {
    return local_files().list(folder);
  }
  void make_folder(const std::string& path) override {
    count();
    local_files().make_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    count();
    local_files().rename(from, to);
  }
  void exchange(const std::string& a, const std::string& b) override {
    count();
    local_files().exchange(a, b);
  }
  void remove(const std::string& path) override {
    count();
    local_files().remove(path);
  }
  void sync_folder(const std::string& path) override {
    count();
    local_files().sync_folder(path);
  }
  std::uint64_t free_bytes(const std::string& folder) override {
    return local_files().free_bytes(folder);
  }

 private:
  class Output : public checkpoint::OutputFile {
   public:
    Output(KillingFiles& files, std::unique_ptr<checkpoint::OutputFile> file)
        : files_(files), file_(std::move(file)) {}
    void append(std::span<const std::byte> bytes) override {
      // Half of it may be there when the process ends.
      file_->append(bytes.first(bytes.size() / 2));
      files_.count();
      file_->append(bytes.subspan(bytes.size() / 2));
    }
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      const auto half = bytes.first(bytes.size() / 2);
      file_->write_at(offset, half);
      files_.count();
      file_->write_at(offset + half.size(), bytes.subspan(half.size()));
    }
    void sync() override {
      files_.count();
      file_->sync();
    }

   private:
    KillingFiles& files_;
    std::unique_ptr<checkpoint::OutputFile> file_;
  };

  void count() {
    if (left_.fetch_sub(1) == 0) ::kill(::getpid(), SIGKILL);
  }
  std::atomic<std::int64_t> left_;
};

/// Two parts of each rank when it is uploaded.
std::vector<SavedTensor> state_of_store() {
  return {saved("w", "f32[7@a, 6]", "[a=2]"), saved("big", "f64[1500000]", "[a=2]"),
          saved("few", "i64[1@a]", "[a=2]")};
}

std::vector<SavedTensor> state_of_world(std::int64_t world) {
  const std::string mesh = concat("[a=", world, "]");
  return {saved("w", "f32[7@a, 6]", mesh.c_str()), saved("big", "c128[300000]", mesh.c_str()),
          saved("few", "i64[1@a]", mesh.c_str())};
}

void save_in(Files& files, const std::string& root, const std::vector<SavedTensor>& tensors,
             std::int64_t world, std::int64_t step, std::uint64_t version, bool replace) {
  const auto thrown = checkpoint::run_ranks(world, [&](Ranks& ranks) {
    const HeldState held(tensors, ranks.rank(), version);
    const checkpoint::StepState state{
        .tensors = tensors, .pieces = held.pieces, .values = {{"version", version}}};
    checkpoint::save_step(files, ranks, root, step, [&] { return state; }, {.replace = replace});
  });
  for (const auto& each : thrown) {
    if (each) std::rethrow_exception(each);
  }
}

void save_in(Files& files, const std::string& root, std::int64_t world, std::int64_t step,
             std::uint64_t version, bool replace) {
  save_in(files, root, state_of_world(world), world, step, version, replace);
}

/// Whether a step is this version of the state, in all its elements.
bool is_version(const std::string& folder, std::int64_t world, std::uint64_t version) {
  return load_difference(local_files(), folder, state_of_world(world), world, version).empty();
}

[[noreturn]] void wrong(const std::string& what) {
  std::cout << "wrong: " << what << '\n';
  std::exit(1);
}

/// Kills a save before its n-th operation. Whether it was still running then.
bool killed_at(std::int64_t point, const std::string& root, std::int64_t world, bool replace) {
  const pid_t child = ::fork();
  if (child == 0) {
    KillingFiles files(point);
    try {
      save_in(files, root, world, replace ? 3 : 4, 2, replace);
    } catch (const std::exception& error) {
      std::cout << error.what() << '\n';
      ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) wrong("a save that was not killed failed");
  return WIFSIGNALED(status);
}

void kills(const std::string& folder, std::int64_t stride) {
  std::int64_t points = 0;
  std::int64_t old_steps = 0;
  for (const std::int64_t world : {1, 2, 3, 4, 5, 6, 7, 8}) {
    // Made before the fork, so that children have it.
    for (std::int64_t rank = 0; rank < world; ++rank) {
      for (const std::uint64_t version : {1, 2}) HeldState(state_of_world(world), rank, version);
    }
    for (const bool replace : {false, true}) {
      for (std::int64_t point = points % stride;; point += stride) {
        const std::string root = folder + "/run";
        fs::remove_all(root);
        fs::create_directory(root);
        save_in(local_files(), root, world, 3, 1, false);
        const bool killed = killed_at(point, root, world, replace);
        const auto steps = checkpoint::steps_in(local_files(), root);
        const std::string where = concat("world ", world, ", point ", point);
        if (steps.empty() || steps[0] != 3) wrong(concat(where, ": the old step is gone"));
        const bool is_old = is_version(root + "/step-00000003", world, 1);
        if (replace ? !is_old && !is_version(root + "/step-00000003", world, 2) : !is_old) {
          wrong(concat(where, ": step 3 is neither the old one nor the new one"));
        }
        const bool has_new = replace ? !is_old : steps.size() == 2;
        if (!replace && has_new && !is_version(root + "/step-00000004", world, 2)) {
          wrong(concat(where, ": step 4 is not the new one"));
        }
        if (!killed && !has_new) wrong(concat(where, ": nobody was killed, and nothing saved"));
        if (!killed) break;
        ++points;
        old_steps += has_new ? 0 : 1;
        save_in(local_files(), root, world, 5, 2, false);  // what was left is not in the way
      }
    }
  }
  std::cout << points << " kills: " << old_steps << " times the old step was the last, "
            << points - old_steps << " times the new one, none wrong\n";
}

class Damage {
 public:
  explicit Damage(const std::string& folder) : folder_(folder) {
    for (const auto& each : fs::directory_iterator(folder)) files_.push_back(each.path());
    std::sort(files_.begin(), files_.end());
  }

  /// Does something to a file, and says what; undone by `mend`.
  std::string next(std::size_t number) {
    path_ = files_[number % files_.size()];
    before_ = read(path_);
    std::string now = before_;
    const std::size_t at = random_() % now.size();
    const std::size_t kind = number / files_.size() % 10;
    std::string what = concat("a bit of byte ", at, " flipped");
    if (kind == 9) {
      now.resize(at);
      what = concat("truncated to ", at, " bytes");
    } else if (kind == 8) {
      const std::size_t bytes = std::min<std::size_t>(512, now.size() - at);
      std::string block(bytes, '\0');
      if (now.compare(at, bytes, block) == 0) block.assign(bytes, 'x');
      now.replace(at, bytes, block);
      what = concat("a block at byte ", at, " zeroed");
    } else {
      now[at] = static_cast<char>(now[at] ^ (1 << random_() % 8));
    }
    write(path_, now);
    return concat(path_.filename().string(), ": ", what);
  }
  void mend() { write(path_, before_); }
  const fs::path& path() const { return path_; }

 private:
  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string folder_;
  std::vector<fs::path> files_;
  std::mt19937_64 random_{1};
  fs::path path_;
  std::string before_;
};

void flips(const std::string& folder, std::size_t count) {
  constexpr std::int64_t kWorld = 3;
  save_in(local_files(), folder, kWorld, 3, 1, false);
  const std::string step = folder + "/step-00000003";
  std::size_t named = 0;
  Damage damage(step);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string what = damage.next(i);
    try {
      if (is_version(step, kWorld, 1)) wrong(what + ": was not noticed");
      wrong(what + ": was loaded");
    } catch (const FileError& error) {
      const std::string text = error.what();
      if (text.find(step + "/") == text.npos) wrong(what + ": the file is not named: " + text);
      ++named;
    }
    damage.mend();
  }
  if (!is_version(step, kWorld, 1)) wrong("what was mended is not loaded");
  std::cout << named << " damages, each refused with the name of the file\n";
}

/// As if the space had been there when it was asked for.
class GenerousFiles : public KillingFiles {
 public:
  GenerousFiles() : KillingFiles(INT64_MAX) {}
  std::uint64_t free_bytes(const std::string&) override { return UINT64_MAX; }
};

void fill(const std::string& folder) {
  std::int64_t failed = 0;
  GenerousFiles files;
  save_in(local_files(), folder, 2, 3, 1, false);
  for (std::int64_t kibibytes = 0;; kibibytes += 256) {
    const std::uint64_t free = local_files().free_bytes(folder);
    const std::string filler = folder + "/filler";
    const std::int64_t left = static_cast<std::int64_t>(free) - kibibytes * 1024;
    if (left <= 0) break;
    std::ofstream(filler, std::ios::binary) << std::string(static_cast<std::size_t>(left), 'x');
    try {
      save_in(files, folder, 2, 4, 2, false);
      fs::remove_all(folder + "/step-00000004");
    } catch (const FileError& error) {
      if (std::string(error.what()).find("No space left") == std::string::npos) wrong(error.what());
      ++failed;
    }
    fs::remove(filler);
    if (!is_version(folder + "/step-00000003", 2, 1)) wrong("the old step is damaged");
    if (fs::exists(folder + "/step-00000004")) wrong("a step that failed is there");
  }
  std::cout << failed << " saves failed for want of space, and left the old step as it was\n";
  if (failed == 0) wrong("no save failed");
}

int save_one(const std::string& root, std::int64_t step, std::uint64_t version) {
  try {
    save_in(checkpoint::all_files(), root, state_of_store(), 2, step, version, /*replace=*/true);
    return 0;
  } catch (const std::exception& error) {
    std::cout << error.what() << '\n';
    return 3;
  }
}

/// Each step must be one version in all its elements, or refuse to be loaded.
void check(const std::string& root) {
  Files& files = checkpoint::all_files();
  for (const std::int64_t step : checkpoint::steps_in(files, root)) {
    const std::string folder = checkpoint::join_path(root, checkpoint::step_name(step));
    const auto manifest = checkpoint::read_manifest(files, folder);
    const auto version = manifest.values.at("version").get<std::uint64_t>();
    const std::string difference =
        load_difference(files, folder, manifest, state_of_store(), 2, version);
    if (!difference.empty()) wrong(concat("step ", step, ": ", difference));
    std::cout << step << ' ' << version << '\n';
  }
}

}  // namespace
}  // namespace intarsia::testing

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "checkpoint_faults kills|flips|full|save|check FOLDER [NUMBER [VERSION]]\n";
    return 2;
  }
  const std::string what = argv[1];
  const std::string folder = argv[2];
  const long number = argc > 3 ? std::stol(argv[3]) : 1;
  if (what == "kills") intarsia::testing::kills(folder, number);
  if (what == "flips") intarsia::testing::flips(folder, static_cast<std::size_t>(number));
  if (what == "full") intarsia::testing::fill(folder);
  if (what == "save" && argc > 4) {
    return intarsia::testing::save_one(folder, number, std::stoul(argv[4]));
  }
  if (what == "check") {
    try {
      intarsia::testing::check(folder);
    } catch (const intarsia::FileError& error) {
      std::cout << error.what() << '\n';
      return 3;
    }
  }
  return 0;
}
