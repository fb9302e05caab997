#include "tools/doctor/doctor.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "tools/common/companion.h"
#include "tools/doctor/checks.h"

namespace intarsia::tools {
namespace {

std::vector<Check> all_checks() {
  const Environment environment = process_environment();
  TorchFindings torch = check_torch(companion_places("intarsia-probe"));
  std::vector<Check> checks = std::move(torch.checks);
  checks.push_back(check_network(environment));
  checks.push_back(check_rendezvous(environment));
  checks.push_back(check_clock());
  checks.push_back(check_open_files());
  checks.push_back(check_locked_memory(torch.locks_memory));
  checks.push_back(check_shared_memory());
  checks.push_back(check_cores(environment));
  checks.push_back(check_memory());
  return checks;
}

int run(bool as_json) {
  const std::vector<Check> checks = all_checks();
  if (as_json) {
    std::cout << to_json(checks).dump(2, ' ', false,
                                      nlohmann::ordered_json::error_handler_t::replace)
              << '\n';
  } else {
    std::cout << to_text(checks);
  }
  return any_failed(checks) ? 1 : 0;
}

}  // namespace

std::function<int()> add_doctor(CLI::App& command) {
  const auto as_json = std::make_shared<bool>(false);
  command.add_flag("--json", *as_json, "Print the checks as one JSON object");
  command.footer(
      "Run it in the environment of a job (under torchrun, mpirun or srun, or with RANK and\n"
      "WORLD_SIZE set) to check that job's rendezvous too. It takes a few seconds, and changes\n"
      "nothing.\n"
      "\n"
      "Exit codes: 0 nothing failed (there may be warnings), 1 a check failed, 2 wrong arguments.");
  return [as_json] { return run(*as_json); };
}

}  // namespace intarsia::tools
