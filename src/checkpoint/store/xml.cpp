#include "checkpoint/store/xml.h"

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "base/text.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::array<std::pair<std::string_view, char>, 5> kNames{
    {{"lt", '<'}, {"gt", '>'}, {"amp", '&'}, {"quot", '"'}, {"apos", '\''}}};

/// What `&...;` stands for. Numbers beyond ASCII do not come in what we ask for.
std::optional<char> entity(std::string_view name) {
  for (const auto& [each, character] : kNames) {
    if (each == name) return character;
  }
  if (!name.starts_with('#')) return std::nullopt;
  const bool is_hex = name.starts_with("#x");
  const std::string_view digits = name.substr(is_hex ? 2 : 1);
  int number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, is_hex ? 16 : 10);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1 || number > 127) {
    return std::nullopt;
  }
  return static_cast<char>(number);
}

}  // namespace

std::vector<std::string_view> elements(std::string_view xml, std::string_view name) {
  const std::string begin = concat('<', name, '>');
  const std::string end = concat("</", name, '>');
  std::vector<std::string_view> out;
  for (std::size_t at = xml.find(begin); at != xml.npos; at = xml.find(begin, at)) {
    at += begin.size();
    const std::size_t close = xml.find(end, at);
    if (close == xml.npos) break;
    out.push_back(xml.substr(at, close - at));
    at = close;
  }
  return out;
}

std::string element_text(std::string_view xml, std::string_view name) {
  const auto found = elements(xml, name);
  return found.empty() ? std::string() : xml_decoded(found[0]);
}

std::string xml_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t end = text[i] == '&' ? text.find(';', i) : text.npos;
    if (end != text.npos) {
      if (const auto character = entity(text.substr(i + 1, end - i - 1))) {
        out += *character;
        i = end;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

std::string xml_encoded(std::string_view text) {
  std::string out;
  for (const char each : text) {
    std::string_view name;
    for (const auto& [known, character] : kNames) {
      if (character == each) name = known;
    }
    out += name.empty() ? std::string(1, each) : concat('&', name, ';');
  }
  return out;
}

}  // namespace intarsia::checkpoint
