#include "tools/ckpt/ckpt_command.h"

#include <unistd.h>

#include <iostream>

#include "base/text.h"
#include "checkpoint/files/files.h"
#include "checkpoint/inspect/export.h"
#include "checkpoint/inspect/import_dcp.h"
#include "checkpoint/inspect/reshard.h"
#include "checkpoint/inspect/verify.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/store/all_files.h"
#include "intarsia/error.h"
#include "tools/ckpt/opened.h"
#include "tools/ckpt/reports.h"
#include "tools/common/arguments.h"

namespace intarsia::tools {
namespace {

using checkpoint::all_files;
using checkpoint::Json;
using checkpoint::Opened;

constexpr int kNotEqual = 1;
constexpr int kDamaged = 1;

struct Arguments {
  std::string folder;
  std::string other;  // of diff, and the folder that export and import write
  std::optional<std::int64_t> step;
  bool all = false;
  bool json = false;
  bool writers = false;
  bool tensors_only = false;
  std::string match;
  std::string prefix;
  std::string map;
  std::int64_t files = 1;
  std::string dtype;
  std::string file_bytes = "5GiB";
};

void print(bool json, const Json& report, const std::string& text) {
  std::cout << (json ? report.dump(2) + '\n' : text);
}

/// A line that is written again and again, on terminals only.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what)
      : what_(std::move(what)), is_shown_(::isatty(STDERR_FILENO) != 0) {}
  ~ProgressBar() {
    if (is_shown_) std::cerr << "\r\033[K" << std::flush;
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void operator()(std::uint64_t done, std::uint64_t all) {
    const std::uint64_t percent = all == 0 ? 100 : done * 100 / all;
    if (!is_shown_ || percent == last_) return;
    last_ = percent;
    constexpr std::uint64_t kWidth = 40;
    const std::string bar(percent * kWidth / 100, '#');
    std::cerr << '\r' << what_ << " [" << bar << std::string(kWidth - bar.size(), ' ') << "] "
              << percent << " % of " << bytes_text(all) << std::flush;
  }

 private:
  std::string what_;
  bool is_shown_;
  std::uint64_t last_ = 101;
};

int list(const Arguments& a) {
  const Json report = list_report(a.folder);
  print(a.json, report, list_text(report));
  return 0;
}

int show(const Arguments& a) {
  const Json report = show_report(open_checkpoint(a.folder, a.step), a.match, a.writers);
  print(a.json, report, show_text(report));
  return 0;
}

/// The folders of the steps to be verified.
std::vector<std::string> folders_of(const Arguments& a) {
  std::vector<std::string> out;
  if (!a.all) {
    checkpoint::Files& files = all_files();
    const bool is_step = files.exists(checkpoint::join_path(a.folder, checkpoint::kManifestName));
    if (is_step && !a.step) return {a.folder};
    const auto steps = checkpoint::steps_in(files, a.folder);
    if (steps.empty()) fail<FileError>("ckpt", a.folder, ": no steps");
    return {checkpoint::folder_of_step(files, a.folder, a.step.value_or(steps.back()))};
  }
  for (const std::int64_t step : checkpoint::steps_in(all_files(), a.folder)) {
    out.push_back(checkpoint::folder_of_step(all_files(), a.folder, step));
  }
  return out;
}

int verify(const Arguments& a) {
  Json report = Json::array();
  std::string text;
  bool is_good = true;
  for (const std::string& folder : folders_of(a)) {
    ProgressBar bar("verifying");
    const auto wrong = checkpoint::verify_step(all_files(), folder, std::ref(bar));
    report.push_back({{"folder", folder}, {"wrong", wrong}});
    is_good = is_good && wrong.empty();
    if (wrong.empty()) text += concat(folder, ": all bytes are as they were written\n");
    for (const std::string& each : wrong) text += concat(each, '\n');
  }
  print(a.json, report, text);
  return is_good ? 0 : kDamaged;
}

int diff(const Arguments& a) {
  const Opened first = open_checkpoint(a.folder, std::nullopt);
  const Opened second = open_checkpoint(a.other, std::nullopt);
  const Json report = diff_report(checkpoint::diff_checkpoints(all_files(), first, second));
  print(a.json, report, diff_text(report));
  return report.empty() ? 0 : kNotEqual;
}

void make_folder(const std::string& path) {
  if (!all_files().exists(path)) all_files().make_folder(path);
}

int export_it(const Arguments& a) {
  checkpoint::ExportOptions options{.prefix = a.prefix};
  if (!a.dtype.empty()) {
    options.dtype = parse_dtype(a.dtype);
    if (!options.dtype) fail<ValueError>("--dtype", "'", a.dtype, "' is no element type");
  }
  if (!a.map.empty()) {
    constexpr std::uint64_t kMost = std::uint64_t{64} << 20;
    options.names = checkpoint::NameMap::parse(
        a.map, checkpoint::read_text(checkpoint::local_files(), a.map, kMost));
  }
  options.file_bytes = static_cast<std::uint64_t>(read_bytes("--file-bytes", a.file_bytes));
  const Opened from = open_checkpoint(a.folder, a.step);
  ProgressBar bar("exporting");
  checkpoint::export_hf(all_files(), from.folder, from.manifest, a.other, options, std::ref(bar));
  return 0;
}

int reshard_it(const Arguments& a) {
  const Opened from = open_checkpoint(a.folder, a.step);
  ProgressBar bar("writing");
  make_folder(a.other);
  checkpoint::reshard(all_files(), from.folder, from.manifest, a.other, a.files, std::ref(bar));
  return 0;
}

int import_it(const Arguments& a) {
  ProgressBar bar("importing");
  make_folder(a.other);
  checkpoint::import_dcp(all_files(), a.folder, a.other, a.step.value_or(0), !a.tensors_only,
                         std::ref(bar));
  return 0;
}

}  // namespace

std::function<int()> add_ckpt(CLI::App& command) {
  const auto a = std::make_shared<Arguments>();
  const auto run = std::make_shared<int (*)(const Arguments&)>(nullptr);
  command.require_subcommand(1);
  const auto add = [&](const char* name, const char* what, int (*act)(const Arguments&)) {
    CLI::App* sub = command.add_subcommand(name, what);
    sub->parse_complete_callback([run, act] { *run = act; });
    const std::string_view word = name;
    const char* folder = word == "ls"       ? "Of a run"
                         : word == "import" ? "With .metadata and .distcp files"
                                            : "Of a run, or of a step";
    sub->add_option("FOLDER", a->folder, folder)->required()->type_name("");
    return sub;
  };
  const auto step = [&](CLI::App* sub) {
    return sub->add_option("--step", a->step, "Of a run; the newest unless told")->type_name("N");
  };
  const auto json = [&](CLI::App* sub) { sub->add_flag("--json", a->json, "Print JSON"); };

  json(add("ls", "List the steps of a run", list));

  CLI::App* sub = add("show", "Show what a checkpoint holds, and who wrote it", show);
  step(sub);
  sub->add_option("--match", a->match, "Only tensors whose names fit: model.*.weight")
      ->type_name("PATTERN");
  sub->add_flag("--writers", a->writers, "Which rank wrote which part of each tensor");
  json(sub);

  sub = add("verify", "Read all of a step, and compare it with its hashes", verify);
  step(sub)->excludes(sub->add_flag("--all", a->all, "All steps of the run"));
  json(sub);

  sub = add("diff", "Compare two checkpoints, whatever their layouts", diff);
  sub->add_option("OTHER", a->other, "The second")->required()->type_name("");
  json(sub);

  sub = add("export", "Write a folder that Hugging Face's tools read", export_it);
  sub->add_option("OUT", a->other, "The folder to write")->required()->type_name("");
  step(sub);
  sub->add_option("--prefix", a->prefix, "Only names that begin so, and without it: model.")
      ->type_name("TEXT");
  sub->add_option("--map", a->map,
                  "A file with rules for names, as loading takes it; run backwards")
      ->type_name("FILE");
  sub->add_option("--dtype", a->dtype, "Convert floating point numbers: f64, f32, bf16, f16")
      ->type_name("NAME");
  sub->add_option("--file-bytes", a->file_bytes, "The most in a file; 5GiB unless told")
      ->type_name("N");

  sub = add("reshard", "Write a step anew, in another number of files", reshard_it);
  sub->add_option("OUT", a->other, "The folder of a run, new or not")->required()->type_name("");
  step(sub);
  sub->add_option("--files", a->files, "How many; 1 unless told")->type_name("N");

  sub = add("import", "Read a folder of torch.distributed.checkpoint; nothing in it is executed",
            import_it);
  sub->add_option("OUT", a->other, "The folder of a run, new or not")->required()->type_name("");
  sub->add_option("--step", a->step, "To be written; 0 unless told")->type_name("N");
  sub->add_flag("--tensors-only", a->tensors_only, "Leave out what is no tensor");

  command.footer(
      "A FOLDER may be that of a run (its newest step is taken), that of a step, or, for show, "
      "diff,\n"
      "export and reshard, one of Hugging Face with safetensors files. Needs no ranks, no torch, "
      "no "
      "Python.\n"
      "\n"
      "Exit codes: 0 fine, 1 damaged (verify), not equal (diff) or it could not be done, 2 wrong\n"
      "arguments.");
  return [a, run] { return (*run)(*a); };
}

}  // namespace intarsia::tools
