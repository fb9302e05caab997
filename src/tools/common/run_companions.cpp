#include "tools/common/run_companions.h"

#include "tools/common/companion.h"

namespace intarsia::tools {
namespace {

std::function<int()> add(CLI::App& command, const char* program, const char* role) {
  command.set_help_flag();  // the other program has the help
  command.allow_extras();
  command.prefix_command();
  return [&command, program, role] { return become(program, role, command.remaining()); };
}

}  // namespace

std::function<int()> add_calibrate(CLI::App& command) {
  return add(command, "intarsia-calibrate", "measures");
}

std::function<int()> add_ops(CLI::App& command) {
  return add(command, "intarsia-ops", "knows the ops");
}

}  // namespace intarsia::tools
