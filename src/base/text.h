// Text: joining values into messages, and a cursor to parse the text forms of the nouns.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace intarsia {

std::string number_text(double value);

namespace detail {
inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, char c) { out += c; }
inline void append(std::string& out, std::same_as<double> auto value) { out += number_text(value); }
template <std::integral T>
void append(std::string& out, T value) {
  out += std::to_string(value);
}
template <class T>
requires requires(const T& value) { value.to_string(); }
void append(std::string& out, const T& value) { out += value.to_string(); }
}  // namespace detail

/// All parts as one text: strings, numbers, and anything that has `to_string()`.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

/// The values of a range, separated, each turned into text by `concat`.
template <class Range>
std::string join(const Range& values, std::string_view separator = ",") {
  std::string out;
  bool first = true;
  for (const auto& value : values) {
    if (!std::exchange(first, false)) out += separator;
    detail::append(out, value);
  }
  return out;
}

/// Throws `E` with all parts joined. `where` names the public function the user called.
template <class E, class... Parts>
[[noreturn]] void fail(std::string_view where, const Parts&... parts) {
  throw E(concat('[', where, "] ", parts...));
}

/// Whether `text` may name an axis: a letter or '_', then letters, digits or '_'.
bool is_name(std::string_view text);

/// Reads a text form from left to right; spaces between tokens are skipped. Each failure throws a
/// ValueError that shows the full text and the position.
class Cursor {
 public:
  Cursor(std::string_view where, std::string_view text) : where_(where), text_(text) {}

  bool done();
  bool peek(std::string_view token);
  /// Takes `token` when it comes next, and says whether it did.
  bool accept(std::string_view token);
  void expect(std::string_view token);
  std::string name();
  std::int64_t integer();
  double number();
  /// REQUIRES nothing but the end of the text to follow.
  void end();
  [[noreturn]] void fail_here(std::string_view expected);

 private:
  void skip_spaces();
  std::string_view where_;
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace intarsia
