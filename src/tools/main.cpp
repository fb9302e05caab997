// The program `intarsia`. It needs no torch, so that it can tell what is wrong where torch is.
#include <CLI/CLI.hpp>
#include <array>
#include <exception>
#include <iostream>

#include "tools/ckpt/ckpt_command.h"
#include "tools/common/run_companions.h"
#include "tools/doctor/doctor.h"
#include "tools/plan/plan_command.h"
#include "tools/schedule/schedule_command.h"
#include "tools/show/show_command.h"

namespace {

struct Command {
  const char* name;
  const char* summary;
  /// Declares the arguments; returns what runs the command and gives the exit code.
  std::function<int()> (*add)(CLI::App& command);
};

constexpr std::array kCommands{
    Command{"calibrate", "Measure what moving data between the ranks of a job costs",
            intarsia::tools::add_calibrate},
    Command{"ckpt", "Look at checkpoints, verify, compare and export them",
            intarsia::tools::add_ckpt},
    Command{"doctor", "Check whether this machine can run Intarsia jobs, and say what to do if not",
            intarsia::tools::add_doctor},
    Command{"ops", "List the ops and their rules, and prove rules", intarsia::tools::add_ops},
    Command{"plan", "Say how a tensor gets from one layout to another, and what it costs",
            intarsia::tools::add_plan},
    Command{"schedule", "Make, check, time and search schedules of pipelines",
            intarsia::tools::add_schedule},
    Command{"show", "Show which rank holds what of a tensor", intarsia::tools::add_show},
};

constexpr int kWrongArguments = 2;

int run(int argc, char** argv) {
  CLI::App app("Tools for Intarsia, distributed tensors for libtorch", "intarsia");
  app.set_version_flag("--version", "intarsia " INTARSIA_VERSION, "Print the version and exit");
  app.require_subcommand(1);
  int exit_code = 0;
  for (const Command& command : kCommands) {
    CLI::App* subcommand = app.add_subcommand(command.name, command.summary);
    subcommand->callback([&exit_code, run = command.add(*subcommand)] { exit_code = run(); });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongArguments;  // --help and --version come here as well
  }
  return exit_code;
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
