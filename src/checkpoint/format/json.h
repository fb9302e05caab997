// Strict reading of the JSON in checkpoints. Files come from elsewhere: what is not exactly as
// docs/formats.md says is a FileError that names the file, never a guess.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace intarsia::checkpoint {

using Json = nlohmann::json;

/// One value of an object or list, and where it stands, for messages.
struct Field {
  const Json& value;
  std::string_view file;
  std::string place;

  /// Throws a FileError that names the file and the place.
  [[noreturn]] void refuse(std::string_view reason) const;
  /// REQUIRES an object with this name in it.
  Field at(std::string_view name) const;
  Field item(std::size_t index) const;
  /// The object's names are exactly these.
  void only(std::initializer_list<std::string_view> names) const;
  void only(std::span<const std::string_view> names) const;
  std::int64_t integer(std::int64_t least = 0) const;
  const std::string& text() const;
  /// 16 hexadecimal digits.
  std::uint64_t hash() const;
  const Json::array_t& list() const;
  const Json::object_t& object() const;
};

/// Reads a text with one JSON value. A name that comes twice in an object, a depth above 64 and
/// anything after the value are refused.
Json parse_json(std::string_view file, std::string_view text);

/// A text as JSON. ValueError for one that is not UTF-8.
std::string text_json(std::string_view text);

/// 16 hexadecimal digits.
std::string hash_to_text(std::uint64_t hash);

}  // namespace intarsia::checkpoint
