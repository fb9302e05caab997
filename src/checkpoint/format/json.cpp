#include "checkpoint/format/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <vector>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr int kMostDepth = 64;
constexpr std::size_t kHashDigits = 16;

}  // namespace

Json parse_json(std::string_view file, std::string_view text) {
  std::vector<std::set<std::string, std::less<>>> names;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMostDepth) fail<FileError>(kWhere, file, ": the JSON is nested too deep");
    if (event == Json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names.back().insert(name).second) {
        fail<FileError>(kWhere, file, ": the name '", name, "' comes twice in one object");
      }
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    fail<FileError>(kWhere, file, ": not valid JSON: ", error.what());
  }
}

void Field::refuse(std::string_view reason) const {
  fail<FileError>(kWhere, file, ": ", place.empty() ? "the file" : place, ' ', reason);
}

Field Field::at(std::string_view name) const {
  const auto& all = object();
  const auto found = all.find(name);
  if (found == all.end()) refuse(concat("has no '", name, "'"));
  return {found->second, file, place.empty() ? std::string(name) : concat(place, '.', name)};
}

Field Field::item(std::size_t index) const {
  return {list()[index], file, concat(place, '[', index, ']')};
}

void Field::only(std::initializer_list<std::string_view> names) const {
  only(std::span(names.begin(), names.size()));
}

void Field::only(std::span<const std::string_view> names) const {
  for (const auto& [name, ignored] : object()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      refuse(concat("has an unknown '", name, "'"));
    }
  }
}

std::int64_t Field::integer(std::int64_t least) const {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}
                        : value.is_number_integer();
  if (!fits) refuse("is not an integer of 64 bits");
  const auto number = value.get<std::int64_t>();
  if (number < least) refuse(concat("is ", number, ", less than ", least));
  return number;
}

const std::string& Field::text() const {
  if (!value.is_string()) refuse("is not a text");
  return value.get_ref<const std::string&>();
}

std::uint64_t Field::hash() const {
  const std::string& digits = text();
  std::uint64_t hash = 0;
  const auto* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, hash, 16);
  if (digits.size() != kHashDigits || read.ptr != end || hash_to_text(hash) != digits) {
    refuse("is not a hash of 16 digits");
  }
  return hash;
}

const Json::array_t& Field::list() const {
  if (!value.is_array()) refuse("is not a list");
  return value.get_ref<const Json::array_t&>();
}

const Json::object_t& Field::object() const {
  if (!value.is_object()) refuse("is not an object");
  return value.get_ref<const Json::object_t&>();
}

std::string text_json(std::string_view text) {
  // Nearly all names are of letters, digits and dots.
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  if (is_plain) return concat('"', text, '"');
  try {
    return Json(text).dump();
  } catch (const Json::exception& error) {
    fail<ValueError>(kWhere, "a name in the state is not valid UTF-8: ", error.what());
  }
}

std::string hash_to_text(std::uint64_t hash) {
  std::array<char, kHashDigits> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), hash, 16).ptr;
  const auto length = static_cast<std::size_t>(end - digits.data());
  return std::string(kHashDigits - length, '0') + std::string(digits.data(), length);
}

}  // namespace intarsia::checkpoint
