#include "prove/literals.h"

namespace intarsia {

std::string float_text(double value) {
  std::string text = number_text(value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

std::variant<std::int64_t, double> read_number(Cursor& cursor) {
  Cursor ahead = cursor;
  const bool named = ahead.accept("-inf") || ahead.accept("inf") || ahead.accept("nan");
  if (named) return cursor.number();
  ahead.integer();
  if (ahead.peek(".") || ahead.peek("e")) return cursor.number();
  return cursor.integer();
}

double read_double(Cursor& cursor) {
  return std::visit([](auto v) { return static_cast<double>(v); }, read_number(cursor));
}

DType read_dtype(Cursor& cursor) {
  Cursor ahead = cursor;
  const std::string name = ahead.name();
  const auto dtype = name == "b1" ? DType::b1 : parse_dtype(name);
  if (!dtype) cursor.fail_here("a dtype such as f64, i64, u8, bool or c128");
  cursor = ahead;
  return *dtype;
}

}  // namespace intarsia
