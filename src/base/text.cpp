#include "base/text.h"

#include <array>
#include <charconv>

#include "intarsia/error.h"

namespace intarsia {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

bool is_name(std::string_view text) {
  if (text.empty() || !is_letter(text[0])) return false;
  for (const char c : text) {
    if (!is_letter(c) && !is_digit(c)) return false;
  }
  return true;
}

void Cursor::skip_spaces() {
  while (at_ < text_.size() && text_[at_] == ' ') ++at_;
}

bool Cursor::done() {
  skip_spaces();
  return at_ == text_.size();
}

bool Cursor::peek(std::string_view token) {
  skip_spaces();
  return text_.substr(at_, token.size()) == token;
}

bool Cursor::accept(std::string_view token) {
  if (!peek(token)) return false;
  at_ += token.size();
  return true;
}

void Cursor::expect(std::string_view token) {
  if (!accept(token)) fail_here(concat('\'', token, '\''));
}

std::string Cursor::name() {
  skip_spaces();
  std::size_t end = at_;
  while (end < text_.size() && (is_letter(text_[end]) || (end > at_ && is_digit(text_[end])))) {
    ++end;
  }
  if (end == at_) fail_here("a name");
  std::string found(text_.substr(at_, end - at_));
  at_ = end;
  return found;
}

std::int64_t Cursor::integer() {
  skip_spaces();
  std::int64_t value = 0;
  const auto result = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  if (result.ec != std::errc()) fail_here("an integer");
  at_ = static_cast<std::size_t>(result.ptr - text_.data());
  return value;
}

double Cursor::number() {
  skip_spaces();
  double value = 0;
  const auto result = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  if (result.ec != std::errc()) fail_here("a number");
  at_ = static_cast<std::size_t>(result.ptr - text_.data());
  return value;
}

void Cursor::end() {
  if (!done()) fail_here("the end of the text");
}

void Cursor::fail_here(std::string_view expected) {
  const std::string_view rest = text_.substr(at_);
  fail<ValueError>(
      where_, "cannot read \"", text_, "\": expected ", expected, " at position ", at_,
      rest.empty() ? ", where the text ends" : concat(", where it says \"", rest, '"'));
}

}  // namespace intarsia
