#include "tools/common/arguments.h"

#include <limits>

#include "base/text.h"
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

}  // namespace intarsia::tools
