// Runs snippets, and checks what they say of themselves: see snippets.py.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace snippets {

struct Entry {
  std::string name;
  int (*run)();
};

/// Runs the program that is named on the command line.
int run(int argc, char** argv, const std::vector<Entry>& entries);

/// Runs a statement that throws an error of this kind, or prints, as the comment below it says.
/// `pattern`: what it says, as a regular expression of text with single blanks.
void checked(const std::string& kind, const std::string& pattern, const std::string& place,
             const std::function<void()>& statement);

}  // namespace snippets
