#include "tools/common/arguments.h"

#include <fstream>
#include <iostream>
#include <limits>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"

namespace intarsia::tools {

Mesh read_mesh(const std::string& text) {
  const bool has_brackets = text.find('[') != std::string::npos;
  return Mesh::parse(has_brackets ? text : concat('[', text, ']'));
}

std::int64_t read_bytes(std::string_view option, std::string_view text) {
  Cursor cursor(option, text);
  const std::int64_t count = cursor.integer();
  std::int64_t unit = 1;
  if (cursor.accept("KiB")) {
    unit = std::int64_t{1} << 10;
  } else if (cursor.accept("MiB")) {
    unit = std::int64_t{1} << 20;
  } else if (cursor.accept("GiB")) {
    unit = std::int64_t{1} << 30;
  } else if (!cursor.done()) {
    cursor.fail_here("KiB, MiB, GiB or nothing");
  }
  cursor.end();
  if (count < 0 || count > std::numeric_limits<std::int64_t>::max() / unit) {
    fail<ValueError>(option, '\'', text, "' is not between 0 and 2^63 bytes");
  }
  return count * unit;
}

Shape read_shape(const std::string& text) {
  Cursor cursor("--shape", text);
  const bool has_bracket = cursor.accept("[");
  const auto ends = [&] { return has_bracket ? cursor.peek("]") : cursor.done(); };
  Shape shape;
  while (!ends()) {
    if (!shape.empty()) cursor.expect(",");
    const std::int64_t size = cursor.integer();
    if (shape.size() == kMaxDims) {
      fail<ValueError>("--shape", '\'', text, "' has more than ", kMaxDims, " dimensions");
    }
    shape.push_back(size);
  }
  if (has_bracket) cursor.expect("]");
  cursor.end();
  check_shape("--shape", shape);
  return shape;
}

DType read_dtype(const std::string& text) {
  const auto dtype = parse_dtype(text);
  if (!dtype) {
    fail<ValueError>("--dtype", "there is no dtype '", text,
                     "'; it is bool, u8 to u64, i8 to i64, f8e4m3, f8e5m2, f16, bf16, f32, f64, "
                     "c32, c64 or c128");
  }
  return *dtype;
}

int write_output(std::string_view command, const std::string& text, const std::string& path) {
  if (path.empty()) {
    std::cout << text;
    return 0;
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    std::cerr << "intarsia: [" << command << "] cannot write " << path << '\n';
    return 1;
  }
  return 0;
}

}  // namespace intarsia::tools
