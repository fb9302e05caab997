#include "intarsia/pattern.h"

#include <algorithm>

namespace intarsia {
namespace {

/// Whether a letter is in a set as it stands between brackets: `qkv`, `a-z`, `!0-9`.
bool is_in(char letter, std::string_view set) {
  const bool inverted = set.starts_with('!');
  if (inverted) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found |= set[i] <= letter && letter <= set[i + 2];
      i += 2;
    } else {
      found |= set[i] == letter;
    }
  }
  return found != inverted;
}

bool fits(std::string_view name, std::string_view pattern) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    for (std::size_t i = 0; i <= name.size(); ++i) {
      if (fits(name.substr(i), pattern.substr(1))) return true;
    }
    return false;
  }
  if (name.empty()) return false;
  const std::size_t close = pattern[0] == '[' ? pattern.find(']', 2) : std::string_view::npos;
  if (close != std::string_view::npos) {
    return is_in(name[0], pattern.substr(1, close - 1)) &&
           fits(name.substr(1), pattern.substr(close + 1));
  }
  return (pattern[0] == '?' || name[0] == pattern[0]) && fits(name.substr(1), pattern.substr(1));
}

/// Whether any alternative of the pattern is as wanted.
template <class Fits>
bool any_alternative(std::string_view pattern, const Fits& wanted) {
  while (true) {
    const std::size_t end = std::min(pattern.find('|'), pattern.size());
    if (wanted(pattern.substr(0, end))) return true;
    if (end == pattern.size()) return false;
    pattern.remove_prefix(end + 1);
  }
}

}  // namespace

bool matches(std::string_view name, std::string_view pattern) {
  return any_alternative(pattern, [&](std::string_view one) { return fits(name, one); });
}

bool matches_parts(std::string_view name, std::string_view pattern) {
  const auto dots = [](std::string_view text) { return std::count(text.begin(), text.end(), '.'); };
  return any_alternative(
      pattern, [&](std::string_view one) { return dots(name) == dots(one) && fits(name, one); });
}

bool matches_any(std::string_view name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(name, pattern); });
}

}  // namespace intarsia
