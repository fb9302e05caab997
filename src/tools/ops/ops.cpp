// The program `intarsia-ops`, which `intarsia ops` runs: lists ops and their rules, and proves
// them. A program of its own, because it loads libtorch.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "base/text.h"
#include "intarsia/error.h"
#include "tools/ops/op_table.h"
#include "tools/ops/ops_check.h"
#include "tools/ops/ops_page.h"

namespace {

using namespace intarsia;
using namespace intarsia::tools;

constexpr int kWrongArguments = 2;

// ---- intarsia ops, intarsia ops NAME ----

void list(const std::string& how) {
  for (const OpEntry& op : all_ops()) {
    if (!how.empty() && op.how != how) continue;
    std::string line = concat(op.name, "  ", op.how);
    // For the sample with the most rows: it has the most dimensions.
    const auto sets = row_sets(op);
    const auto most = std::max_element(
        sets.begin(), sets.end(),
        [](const RowSet& a, const RowSet& b) { return a.rows.size() < b.rows.size(); });
    if (most != sets.end()) line += concat("  ", join(most->rows, "; "), "  in ", most->sample);
    std::cout << line << '\n';
  }
}

void describe(const std::string& name) {
  const OpEntry op = find_op(name);
  const auto samples = op.samples();
  std::cout << op.name << ": " << op.how << "\n\n";
  for (const c10::OperatorHandle& overload : op.overloads) {
    std::cout << "  " << overload.schema() << '\n';
  }
  std::cout << "\nIn place: " << (op.in_place ? "yes" : "no")
            << ". With out=: " << (op.out ? "yes" : "no") << ". Samples: " << samples.size()
            << ".\n";
  for (const RowSet& set : row_sets(op)) {
    std::cout << "\n  " << set.sample;
    if (set.samples > 1) std::cout << "   and " << set.samples - 1 << " more";
    std::cout << '\n';
    if (set.rows.empty()) std::cout << "    only R\n";
    for (const std::string& row : set.rows) std::cout << "    " << row << '\n';
  }
  if (!samples.empty()) std::cout << "\nProve it: intarsia ops check " << op.name << '\n';
}

// ---- arguments ----

struct Arguments {
  std::string name;
  std::string how;
  bool markdown = false;
  std::string missing;
  std::vector<std::string> libraries;

  CheckOptions check;
  std::vector<std::string> cases;
  std::string share = "1/1";
  bool quick = false;
  bool no_backward = false;
  bool no_missing = false;
};

void add_libraries(CLI::App& app, Arguments& a) {
  app.add_option("--library", a.libraries,
                 "Load a shared library first: one that registers your ops and adds their rules")
      ->type_name("PATH")
      ->allow_extra_args(false);
}

void declare_list(CLI::App& app, Arguments& a) {
  app.add_option("NAME", a.name, "Show this op in detail: mm, aten::sum, mylib::op");
  app.add_option("--how", a.how, "List only ops that are done so")
      ->type_name("WORD")
      ->check(CLI::IsMember(
          {"rule", "pointwise", "view", "like", "random", "each", "refused", "no rule"}));
  app.add_flag("--markdown", a.markdown, "Print docs/generated/ops.md");
  app.add_option("--missing", a.missing,
                 "With --markdown: the file that `check all --update-missing` wrote")
      ->type_name("FILE");
  add_libraries(app, a);
  app.footer(
      "A row has the placements of operands and results along one axis of the mesh: R the same\n"
      "on all ranks, S(0) sharded along dimension 0, P a partial value of a sum, P(max) of a\n"
      "maximum. What is shown is for one call; rows depend on sizes and arguments. All\n"
      "replicated is always there.\n"
      "\n"
      "How an op is done: rule: a rule of its own; pointwise: the rule of ops that ATen tags so;\n"
      "view, like (new tensors like another), random (by global index), each (lists of tensors);\n"
      "refused; no rule: on full tensors. Ops that ATen takes apart itself are not listed.\n"
      "\n"
      "Exit codes: 0 all is well, 1 a rule is wrong, 2 wrong arguments.");
}

void declare_check(CLI::App& app, Arguments& a) {
  app.add_option("NAME", a.check.name, "mm, aten::sum, aten::sum.dim_IntList, mylib::op, or all");
  app.add_option("--sample", a.check.samples,
                 "Prove it on this call, such as 'mylib::op(f64[6, 4], f64[4])'; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_option("--case", a.cases,
                 "Run a counter-example again: 'mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]'")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_flag("--quick", a.quick,
               "Fewer combinations of placements for each sample: under half of the cases");
  app.add_flag("--no-backward", a.no_backward, "Without gradients");
  app.add_flag("--no-missing", a.no_missing, "Do not look for rows that a rule could have");
  app.add_option("--seed", a.check.proof.seed, "Other values")->type_name("N");
  app.add_option("--share", a.share, "Take every N-th sample, beginning with the I-th: 1/8 to 8/8")
      ->type_name("I/N");
  app.add_option("--jobs", a.check.jobs, "With all: how many ops are proven at once")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  app.add_option("--report", a.check.report, "Write all findings as JSON")->type_name("FILE");
  app.add_option("--update-missing", a.check.missing,
                 "Write the missing rows as JSON; ops that were not proven keep theirs")
      ->type_name("FILE");
  add_libraries(app, a);
  app.footer(
      "Runs the op in lockstep on 2, 3, 4 and more ranks, in all placements of its operands, and\n"
      "compares results and gradients with those of the op on full tensors. Differences are\n"
      "shown in the smallest call that has them. Missing rows are ways to shard the op that its\n"
      "rule does not offer: it then moves data without need. With all, each op has a process of\n"
      "its own.\n"
      "\n"
      "Exit codes: 0 the rule holds, 1 it is wrong or the op crashed, 2 wrong arguments.");
}

// ---- running ----

void load(const std::vector<std::string>& libraries) {
  for (const std::string& path : libraries) {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      fail<ValueError>("ops", "cannot load ", path, ": ", std::string_view(dlerror()));
    }
  }
}

void read_share(const std::string& text, CheckOptions& options) {
  Cursor cursor("--share", text);
  const std::int64_t share = cursor.integer();
  cursor.expect("/");
  const std::int64_t shares = cursor.integer();
  cursor.end();
  if (share < 1 || share > shares) {
    fail<ValueError>("--share", "'", text, "' is not between 1/N and N/N");
  }
  options.share = static_cast<std::size_t>(share - 1);
  options.shares = static_cast<std::size_t>(shares);
}

int run_check(Arguments& a) {
  ProofOptions& proof = a.check.proof;
  if (a.quick) {
    proof.combinations = 32;
    proof.sampled = 2;
  }
  proof.backward = !a.no_backward;
  proof.missing = !a.no_missing;
  read_share(a.share, a.check);
  if (!a.cases.empty()) return check_cases(a.cases, proof);
  if (a.check.name.empty() && a.check.samples.empty()) {
    fail<ValueError>("ops check", "says which op: NAME, all, --sample or --case");
  }
  return check_rules(a.check);
}

int run(int argc, char** argv) {
  Arguments a;
  CLI::App app("List the ops and their rules, and prove rules", "intarsia ops");
  declare_list(app, a);
  CLI::App* check = app.add_subcommand("check", "Prove the rule of an op");
  declare_check(*check, a);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongArguments;
  }
  load(a.libraries);
  if (check->parsed()) return run_check(a);
  if (a.markdown) {
    std::cout << ops_page(a.missing);
  } else if (!a.name.empty()) {
    describe(a.name);
  } else {
    list(a.how);
  }
  return 0;
}

/// Ops that are tried on made-up values warn of much.
class Quiet : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);  // tensors are small, and children are forked
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  try {
    return run(argc, argv);
  } catch (const ValueError& error) {
    std::cerr << "intarsia: " << error.what() << '\n';
    return kWrongArguments;
  } catch (const std::exception& error) {
    std::cerr << "intarsia: " << error.what() << '\n';
    return 1;
  }
}
