#include <array>
#include <fstream>
#include <sstream>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/schedule.h"
#include "pipeline/schedule/actions.h"

namespace intarsia {
namespace {

struct KindName {
  ActionKind kind;
  std::string_view name;
};

constexpr std::array<KindName, 11> kNames{{
    {ActionKind::forward, "F"},
    {ActionKind::backward, "B"},
    {ActionKind::input_backward, "I"},
    {ActionKind::weight_backward, "W"},
    {ActionKind::send_forward, "SF"},
    {ActionKind::receive_forward, "RF"},
    {ActionKind::send_backward, "SB"},
    {ActionKind::receive_backward, "RB"},
    {ActionKind::gather, "G"},
    {ActionKind::free, "X"},
    {ActionKind::reduce, "R"},
}};

/// `F12` is a kind and a microbatch; gather, free and reduce have none.
Action read_action(Cursor& cursor) {
  Action out;
  out.stage = static_cast<int>(cursor.integer());
  const std::string word = cursor.name();
  const std::size_t letters = std::min(word.find_first_of("0123456789"), word.size());
  const auto known = std::find_if(kNames.begin(), kNames.end(), [&](const KindName& n) {
    return n.name == std::string_view(word).substr(0, letters);
  });
  const std::string digits = word.substr(letters);
  const bool is_number = digits.find_first_not_of("0123456789") == std::string::npos;
  if (known == kNames.end() || !is_number || digits.size() > 9 ||
      digits.empty() != is_of_stage(known->kind)) {
    cursor.fail_here("an action such as 3F5, 3RF5@1 or 3G");
  }
  out.kind = known->kind;
  if (!digits.empty()) out.microbatch = std::stoi(digits);
  if (cursor.accept("@")) out.buffer = static_cast<int>(cursor.integer());
  out.with_next = cursor.accept("&");
  return out;
}

}  // namespace

std::string Action::to_string() const {
  const auto known =
      std::find_if(kNames.begin(), kNames.end(), [&](const KindName& n) { return n.kind == kind; });
  std::string out = concat(stage, known->name);
  if (microbatch >= 0) out += concat(microbatch);
  if (buffer >= 0) out += concat('@', buffer);
  if (with_next) out += '&';
  return out;
}

std::string Schedule::to_string() const {
  std::string out = concat("schedule ", name, "\nmicrobatches ", microbatches, "\nstages on ranks ",
                           join(rank_of_stage, " "), '\n');
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    out += concat("rank ", r, ": ", join(ranks[r], " "), '\n');
  }
  return out;
}

Schedule Schedule::parse(std::string_view text) {
  constexpr std::string_view where = "Schedule::parse";
  Schedule out;
  std::istringstream lines{std::string(text)};
  std::string line;
  const auto next = [&](std::string_view begin) {
    while (std::getline(lines, line)) {
      if (line.find_first_not_of(" \t\r") == std::string::npos || line[0] == '#') continue;
      if (!line.starts_with(begin)) {
        fail<ValueError>(where, "a line begins with '", begin, "', not '", line, "'");
      }
      line.erase(0, begin.size());
      return true;
    }
    return false;
  };
  const auto needs = [&](std::string_view begin) {
    if (!next(begin)) fail<ValueError>(where, "the line '", begin, "...' is missing");
  };
  needs("schedule ");
  out.name = line;
  needs("microbatches ");
  Cursor count(where, line);
  out.microbatches = static_cast<int>(count.integer());
  count.end();
  needs("stages on ranks ");
  Cursor stages(where, line);
  while (!stages.done()) out.rank_of_stage.push_back(static_cast<int>(stages.integer()));
  while (next("rank ")) {
    Cursor cursor(where, line);
    if (cursor.integer() != static_cast<std::int64_t>(out.ranks.size())) {
      fail<ValueError>(where, "ranks follow each other from 0 on; 'rank ", line, "' does not");
    }
    cursor.expect(":");
    std::vector<Action>& actions = out.ranks.emplace_back();
    while (!cursor.done()) actions.push_back(read_action(cursor));
  }
  return out;
}

Schedule Schedule::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) fail<FileError>("Schedule::load", "cannot read ", path);
  return parse(text.str());
}

}  // namespace intarsia
