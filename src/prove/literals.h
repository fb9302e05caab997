// Numbers, dtypes and lists in the text of samples.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/text.h"
#include "intarsia/tensor_type.h"

namespace intarsia {

/// A float that reads as one: `1.0`, `-inf`.
std::string float_text(double value);

/// An integer where neither a point nor an exponent follows; else a float, `inf`, `-inf` and `nan`
/// among them.
std::variant<std::int64_t, double> read_number(Cursor& cursor);
/// Either of them, as a float.
double read_double(Cursor& cursor);

/// `f64`, `i64`, ...; `b1` and `bool` are the same.
DType read_dtype(Cursor& cursor);

/// What stands between `open` and `close`, separated by commas, each taken by `read()`.
template <class T, class Read>
std::vector<T> read_list(Cursor& cursor, std::string_view open, std::string_view close, Read read) {
  std::vector<T> out;
  cursor.expect(open);
  while (!cursor.accept(close)) {
    if (!out.empty()) cursor.expect(",");
    out.push_back(read());
  }
  return out;
}

}  // namespace intarsia
