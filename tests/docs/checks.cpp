#include "docs/checks.h"

#include <c10/util/Exception.h>
#include <cxxabi.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <typeinfo>

namespace snippets {
namespace {

std::string with_single_blanks(const std::string& text) {
  std::istringstream words(text);
  std::string result;
  for (std::string word; words >> word;) result += (result.empty() ? "" : " ") + word;
  return result;
}

std::string class_of(const std::exception& error) {
  int status = 0;
  char* name = abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status);
  const std::string result = status == 0 ? name : typeid(error).name();
  std::free(name);
  return result.substr(result.rfind(':') + 1);
}

std::string message_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

void compare(const std::string& place, const std::string& pattern, const std::string& text) {
  if (!std::regex_match(with_single_blanks(text), std::regex(pattern))) {
    throw std::logic_error(place + ": the page says\n  " + pattern + "\nbut it is\n  " + text);
  }
}

std::string printed_by(const std::function<void()>& statement) {
  std::ostringstream printed;
  const std::unique_ptr<std::streambuf, void (*)(std::streambuf*)> before(
      std::cout.rdbuf(printed.rdbuf()), [](std::streambuf* buffer) { std::cout.rdbuf(buffer); });
  statement();
  return printed.str();
}

std::string thrown_by(const std::function<void()>& statement) {
  try {
    statement();
  } catch (const std::exception& error) {
    return class_of(error) + ": " + message_of(error);
  }
  return "no error";
}

}  // namespace

void checked(const std::string& kind, const std::string& pattern, const std::string& place,
             const std::function<void()>& statement) {
  const bool prints = kind == "prints";
  compare(place, prints ? pattern : kind + ": " + pattern,
          prints ? printed_by(statement) : thrown_by(statement));
}

int run(int argc, char** argv, const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    if (argc != 2 || entry.name != argv[1]) continue;
    try {
      return entry.run();
    } catch (const std::exception& error) {
      std::cerr << entry.name << ": " << message_of(error) << "\n";
      return 1;
    }
  }
  std::cerr << "usage: docs_snippets NAME, one of\n";
  for (const Entry& entry : entries) std::cerr << "  " << entry.name << "\n";
  return 2;
}

}  // namespace snippets
