#include "base/text.h"
#include "layout/mesh_data.h"

namespace intarsia {

std::string Mesh::to_string() const {
  const bool plain = has_table() || data_->strides == row_major(data_->axes);
  std::vector<std::string> parts;
  for (std::size_t a = 0; a < axes(); ++a) {
    std::string part = concat(name(a), '=');
    if (plain || size(a) == 1) {
      part += concat(size(a));
    } else {
      std::vector<std::string> digits;
      for (const Stride& s : data_->strides[a]) digits.push_back(concat(s.size, ':', s.step));
      part += join(digits, "*");
    }
    parts.push_back(std::move(part));
  }
  std::string text = concat('[', join(parts), ']');
  if (has_table()) return concat(text, '{', join(data_->table), '}');
  return base() == 0 ? text : concat(text, '+', base());
}

Mesh Mesh::parse(std::string_view text) {
  Cursor cursor("Mesh::parse", text);
  std::vector<StridedAxis> strided;
  std::vector<Axis> axes;
  bool plain = true;
  bool sizes_only = false;
  cursor.expect("[");
  while (!cursor.accept("]")) {
    if (!axes.empty()) cursor.expect(",");
    strided.push_back({cursor.name(), {}});
    cursor.expect("=");
    do {
      Stride s{cursor.integer(), 1};
      if (cursor.accept(":")) {
        plain = false;
        s.step = cursor.integer();
      } else if (s.size != 1) {
        sizes_only = true;
      }
      if (sizes_only && !plain) cursor.fail_here("either a step for every axis or for none");
      strided.back().strides.push_back(s);
    } while (cursor.accept("*"));
    axes.push_back({strided.back().name, walk_size(strided.back().strides)});
  }
  if (cursor.accept("{")) {
    if (!plain) cursor.fail_here("sizes without steps before a table of ranks");
    std::vector<std::int64_t> ranks;
    do {
      ranks.push_back(cursor.integer());
    } while (cursor.accept(","));
    cursor.expect("}");
    cursor.end();
    return of_ranks(axes, ranks);
  }
  const std::int64_t base = cursor.accept("+") ? cursor.integer() : 0;
  cursor.end();
  return plain ? Mesh(axes, base) : Mesh::strided(strided, base);
}

}  // namespace intarsia
