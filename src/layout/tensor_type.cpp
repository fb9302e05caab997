#include "intarsia/tensor_type.h"

#include <array>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "layout/parse.h"

namespace intarsia {
namespace {

enum class NumberKind : std::uint8_t { boolean, integer, real, complex };

struct DTypeName {
  DType dtype;
  std::string_view text;
  NumberKind kind;
};

constexpr std::array<DTypeName, 18> kDTypes{{
    {DType::b1, "bool", NumberKind::boolean},
    {DType::u8, "u8", NumberKind::integer},
    {DType::u16, "u16", NumberKind::integer},
    {DType::u32, "u32", NumberKind::integer},
    {DType::u64, "u64", NumberKind::integer},
    {DType::i8, "i8", NumberKind::integer},
    {DType::i16, "i16", NumberKind::integer},
    {DType::i32, "i32", NumberKind::integer},
    {DType::i64, "i64", NumberKind::integer},
    {DType::f8e4m3, "f8e4m3", NumberKind::real},
    {DType::f8e5m2, "f8e5m2", NumberKind::real},
    {DType::f16, "f16", NumberKind::real},
    {DType::bf16, "bf16", NumberKind::real},
    {DType::f32, "f32", NumberKind::real},
    {DType::f64, "f64", NumberKind::real},
    {DType::c32, "c32", NumberKind::complex},
    {DType::c64, "c64", NumberKind::complex},
    {DType::c128, "c128", NumberKind::complex},
}};

}  // namespace

std::string_view to_text(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].text; }

bool is_exact(Reduction reduction, DType dtype) {
  const NumberKind kind = kDTypes[static_cast<std::size_t>(dtype)].kind;
  const bool number = kind == NumberKind::real || kind == NumberKind::complex;
  switch (reduction) {
    case Reduction::sum:
    case Reduction::product:
      return true;
    case Reduction::avg:
      return number;
    case Reduction::min:
    case Reduction::max:
      return kind != NumberKind::complex;
    case Reduction::bit_and:
    case Reduction::bit_or:
    case Reduction::bit_xor:
      return !number;
    case Reduction::norm:
      return kind == NumberKind::real;
  }
  return false;
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DTypeName& d : kDTypes) {
    if (d.text == text) return d.dtype;
  }
  return std::nullopt;
}

std::string TensorType::to_string() const {
  const Mesh& mesh = layout.mesh();
  std::vector<std::string> sizes;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    sizes.push_back(concat(shape[d]));
    for (const std::int8_t a : layout.axes_of(static_cast<int>(d))) {
      sizes.back() += concat('@', mesh.name(a));
      if (layout.placement(a).is_strided())
        sizes.back() += concat(':', layout.placement(a).split());
    }
  }
  std::string text = concat(to_text(dtype), '[', join(sizes, ", "), ']');
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    if (layout.placement(a).is_partial()) {
      text += concat(' ', layout.placement(a), '@', mesh.name(a));
    }
  }
  return text;
}

TensorType TensorType::parse(std::string_view text, const Mesh& mesh) {
  constexpr std::string_view where = "TensorType::parse";
  Cursor cursor(where, text);
  const std::string name = cursor.name();
  const auto dtype = parse_dtype(name);
  if (!dtype) {
    fail<ValueError>(where, "\"", text, "\" begins with '", name,
                     "', which is no dtype; f32, f64, f16, bf16, i64, i32, i16, i8, u8, bool, c64, "
                     "c128 and a few others are");
  }
  TensorType type{*dtype, {}, {}};
  std::vector<Placement> placements(mesh.axes());
  LayoutOptions options;
  const auto place = [&](const std::string& axis, const Placement& p) {
    Placement& there = placements[mesh.axis_index(axis)];
    if (!there.is_replicate()) {
      fail<ValueError>(where, "\"", text, "\" uses axis '", axis,
                       "' twice; an axis shards or reduces a tensor once");
    }
    there = p;
  };
  cursor.expect("[");
  while (!cursor.accept("]")) {
    if (!type.shape.empty()) cursor.expect(",");
    const int dim = static_cast<int>(type.shape.size());
    type.shape.push_back(cursor.integer());
    std::vector<std::string> order;
    while (cursor.accept("@")) {
      order.push_back(cursor.name());
      const std::int64_t split = cursor.accept(":") ? cursor.integer() : 1;
      place(order.back(), Placement::strided_shard(dim, split));
    }
    if (order.size() > 1) options.order.emplace_back(dim, std::move(order));
  }
  while (!cursor.done()) {
    const Placement p = parse_placement(cursor);
    if (!p.is_partial()) cursor.fail_here("P(reduction)@axis before this");
    cursor.expect("@");
    place(cursor.name(), p);
  }
  type.layout = Layout(mesh, placements, options);
  check(type);
  return type;
}

void check(const TensorType& type) {
  check_dims("TensorType", type.layout, type.shape.size());
  check_shape("TensorType", type.shape);
  for (const Placement& p : type.layout.placements()) {
    if (!p.is_partial() || is_exact(p.reduction(), type.dtype)) continue;
    fail<ValueError>("TensorType", type, ": ", p, " is not exact for ", to_text(type.dtype),
                     p.reduction() == Reduction::avg ? "; use P(sum) and divide afterwards"
                                                     : "; reduce it before, or use another dtype");
  }
}

}  // namespace intarsia
