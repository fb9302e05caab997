#include "tools/run_ops.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

#include "tools/companion.h"

namespace intarsia::tools {
namespace {

int run(std::vector<std::string> words) {
  const auto places = companion_places("intarsia-ops");
  const auto program = first_of(places);
  if (!program) {
    std::cerr << "intarsia: intarsia-ops, which knows the ops, is not at " << text_of(places)
              << "; install all of Intarsia, built with INTARSIA_TORCH=ON, and keep the programs "
                 "in their places\n";
    return 1;
  }
  words.insert(words.begin(), program->string());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(pointers[0], pointers.data());
  std::cerr << "intarsia: " << words[0] << " could not be started: " << std::strerror(errno)
            << '\n';
  return 1;
}

}  // namespace

std::function<int()> add_ops(CLI::App& command) {
  command.set_help_flag();  // the other program has the help
  command.allow_extras();
  command.prefix_command();
  return [&command] { return run(command.remaining()); };
}

}  // namespace intarsia::tools
