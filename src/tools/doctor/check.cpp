#include "tools/doctor/check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace intarsia::tools {
namespace {

std::int64_t count(const std::vector<Check>& checks, Status status) {
  return std::ranges::count(checks, status, &Check::status);
}

std::string padded(std::string_view text, std::size_t width) {
  std::string out(text);
  out.resize(std::max(width, out.size()), ' ');
  return out;
}

/// Later lines of a message, such as a loader's, start below the first.
std::string indented(std::string_view text, std::size_t width) {
  std::string out;
  for (const char c : text) {
    out += c;
    if (c == '\n') out.append(width, ' ');
  }
  return out;
}

}  // namespace

std::string_view to_text(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::warn:
      return "warn";
    case Status::fail:
      return "fail";
  }
  return "";
}

Check ok(std::string name, std::string found) {
  return {std::move(name), Status::ok, std::move(found), ""};
}

Check warn(std::string name, std::string found, std::string what_to_do) {
  return {std::move(name), Status::warn, std::move(found), std::move(what_to_do)};
}

Check fail(std::string name, std::string found, std::string what_to_do) {
  return {std::move(name), Status::fail, std::move(found), std::move(what_to_do)};
}

bool any_failed(const std::vector<Check>& checks) { return count(checks, Status::fail) > 0; }

std::string to_text(const std::vector<Check>& checks) {
  constexpr std::size_t kStatusWidth = 6;
  std::size_t name_width = 0;
  for (const Check& check : checks) name_width = std::max(name_width, check.name.size() + 2);
  const std::size_t margin = kStatusWidth + name_width;
  std::string out;
  for (const Check& check : checks) {
    out += concat(padded(to_text(check.status), kStatusWidth), padded(check.name, name_width),
                  indented(check.found, margin), '\n');
    if (check.what_to_do.empty()) continue;
    out += concat(std::string(margin, ' '), "-> ", indented(check.what_to_do, margin + 3), '\n');
  }
  return concat(out, count(checks, Status::ok), " ok, ", count(checks, Status::warn), " warnings, ",
                count(checks, Status::fail), " failed\n");
}

nlohmann::ordered_json to_json(const std::vector<Check>& checks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    nlohmann::ordered_json entry = {
        {"name", check.name}, {"status", to_text(check.status)}, {"found", check.found}};
    if (!check.what_to_do.empty()) entry["what_to_do"] = check.what_to_do;
    list.push_back(std::move(entry));
  }
  const nlohmann::ordered_json summary = {{"ok", count(checks, Status::ok)},
                                          {"warn", count(checks, Status::warn)},
                                          {"fail", count(checks, Status::fail)}};
  return {{"checks", std::move(list)}, {"summary", summary}};
}

}  // namespace intarsia::tools
