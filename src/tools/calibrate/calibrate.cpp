// The program `intarsia-calibrate`, which `intarsia calibrate` runs: measures what moving data
// costs, and writes a topology. A program of its own, because it loads libtorch.
#include <ATen/ATen.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "tools/calibrate/calibration.h"
#include "tools/common/arguments.h"

namespace {

using namespace intarsia;
using namespace intarsia::tools;

constexpr int kWrongArguments = 2;

// ---- arguments ----

struct Arguments {
  std::string out;
  std::optional<std::int64_t> node_ranks;
  std::vector<std::int64_t> levels;
  std::string mesh;
  std::string sizes;
  int repeats = 0;
  bool quick = false;
  std::string backend;
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("--out", a.out, "The topology file to write")->type_name("FILE")->required();
  CLI::Option* node =
      app.add_option("--node-ranks", a.node_ranks,
                     "Two levels: inside blocks of N neighbouring ranks, and across them")
          ->type_name("N");
  app.add_option("--levels", a.levels, "Blocks of several sizes, the smallest first: 8,64")
      ->type_name("N,N")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->excludes(node);
  app.add_option("--mesh", a.mesh, "Also each axis of this mesh, and each set of axes: dp=2,tp=4")
      ->type_name("MESH");
  app.add_option("--sizes", a.sizes,
                 "Of buffers, by factors of 4: 4KiB..16MiB unless told, quick 16KiB..4MiB")
      ->type_name("N..N");
  app.add_option("--repeats", a.repeats, "How often each is timed: 15 unless told, quick 7")
      ->type_name("N")
      ->check(CLI::Range(1, 100000));
  app.add_flag("--quick", a.quick, "Fewer sizes and repeats: seconds, and rough");
  app.add_option("--backend", a.backend, "gloo, shm, nccl or ucc; the usual one unless told")
      ->type_name("NAME");
  app.footer(
      "Every process of a job runs it, alone on its machines:\n"
      "\n"
      "  torchrun --nproc-per-node 8 --no-python intarsia calibrate --out topology.json\n"
      "\n"
      "Rank 0 writes the file and prints what was measured, beside what the fit makes of it. Jobs\n"
      "take the file by the variable INTARSIA_TOPOLOGY or the option `topology` of a world.\n"
      "\n"
      "Exit codes: 0 the file is written, 1 it is not (one process has nothing to measure), 2 "
      "wrong\n"
      "arguments.");
}

/// `4KiB..16MiB`: both, and between them each four times the one before.
std::vector<std::int64_t> read_sizes(const std::string& text) {
  const std::size_t dots = text.find("..");
  const std::int64_t first = read_bytes("--sizes", text.substr(0, dots));
  const std::int64_t last =
      dots == std::string::npos ? first : read_bytes("--sizes", text.substr(dots + 2));
  constexpr std::int64_t kMost = std::int64_t{1} << 34;
  if (first < 4 || last < 4 * first || last > kMost) {
    fail<ValueError>("--sizes", '\'', text,
                     "' is no range from at least 4 bytes to at least four times as many, at most "
                     "16GiB; such as 4KiB..16MiB");
  }
  std::vector<std::int64_t> out;
  for (std::int64_t size = first; size < last; size *= 4) out.push_back(size);
  out.push_back(last);
  return out;
}

CalibrationOptions read(const Arguments& a, std::int64_t ranks) {
  CalibrationOptions out;
  if (a.node_ranks && *a.node_ranks != ranks) out.levels.push_back({"node", *a.node_ranks});
  for (const std::int64_t level : a.levels) {
    out.levels.push_back({concat(level, " ranks"), level});
  }
  if (!a.levels.empty() && a.levels.back() == ranks) {
    out.levels.pop_back();  // the last level joins all anyway
  }
  if (!a.mesh.empty()) out.mesh = read_mesh(a.mesh);
  const char* usual = a.quick ? "16KiB..4MiB" : "4KiB..16MiB";
  out.sizes = read_sizes(a.sizes.empty() ? usual : a.sizes);
  const int usual_repeats = a.quick ? 7 : 15;
  out.repeats = a.repeats > 0 ? a.repeats : usual_repeats;
  out.quick = a.quick;
  check(out, ranks);
  return out;
}

// ---- writing ----

/// A file beside the one to write, which takes its place when it is complete.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), draft_(concat(path, ".", static_cast<std::int64_t>(getpid()), ".new")) {
    file_.open(draft_, std::ios::binary);
  }
  ~NewFile() {
    std::error_code error;
    if (!done_) std::filesystem::remove(draft_, error);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  bool is_open() const { return file_.is_open(); }
  bool write(const std::string& text) {
    file_ << text;
    file_.close();
    std::error_code error;
    if (file_) std::filesystem::rename(draft_, path_, error);
    done_ = file_ && !error;
    return done_;
  }

 private:
  std::string path_;
  std::string draft_;
  std::ofstream file_;
  bool done_ = false;
};

/// Whether it is so on all ranks: they go on together, or none does.
bool on_all(World& world, bool here) {
  const at::Tensor one = at::full({1}, here ? 1 : 0, at::TensorOptions(at::kLong));
  const Placement least = Placement::partial(Reduction::min);
  return all_reduce(world.everyone(), {one.to(world.device())}, least).tensor().item<bool>();
}

// ---- running ----

int refuse(std::string_view why, int exit_code) {
  std::cerr << "intarsia: [calibrate] " << why << '\n';
  return exit_code;
}

int run(int argc, char** argv) {
  Arguments a;
  CLI::App app("Measure what moving data between the ranks of a job costs", "intarsia calibrate");
  declare(app, a);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongArguments;
  }
  const Rendezvous rendezvous = read_rendezvous(process_environment());
  if (rendezvous.size == 1) {
    return refuse(
        "there is one process, and nothing to measure; start several: torchrun --nproc-per-node 2 "
        "--no-python intarsia calibrate --out topology.json",
        1);
  }
  CalibrationOptions options;
  try {
    options = read(a, rendezvous.size);
  } catch (const ValueError& error) {
    std::cerr << "intarsia: " << error.what() << '\n';
    return kWrongArguments;
  }
  unsetenv("INTARSIA_TOPOLOGY");  // it may name the file that is to be written
  const auto world = World::connect(rendezvous, {.backend = a.backend});
  std::optional<NewFile> file;
  if (world->rank() == 0) file.emplace(a.out);
  if (!on_all(*world, !file || file->is_open())) {
    return file ? refuse(concat("cannot write ", a.out), 1) : 1;
  }
  const Calibration found = calibrate(*world, options);
  if (!file) return 0;
  std::cout << found.report;
  if (!file->write(concat(found.costs.to_json(), '\n'))) {
    return refuse(concat("cannot write ", a.out), 1);
  }
  std::cout << "written to " << a.out << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "intarsia: " << error.what() << '\n';
    return 1;
  }
}
