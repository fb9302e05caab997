#include "checkpoint/format/stored_dtype.h"

#include "base/text.h"

#include <array>

namespace intarsia::checkpoint {
namespace {

struct Row {
  DType dtype;
  std::int64_t bytes;
  StoredDType stored;
};

constexpr std::array<Row, 18> kRows{{
    {DType::b1, 1, {"BOOL"}},
    {DType::u8, 1, {"U8"}},
    {DType::u16, 2, {"U16"}},
    {DType::u32, 4, {"U32"}},
    {DType::u64, 8, {"U64"}},
    {DType::i8, 1, {"I8"}},
    {DType::i16, 2, {"I16"}},
    {DType::i32, 4, {"I32"}},
    {DType::i64, 8, {"I64"}},
    {DType::f8e4m3, 1, {"F8_E4M3"}},
    {DType::f8e5m2, 1, {"F8_E5M2"}},
    {DType::f16, 2, {"F16"}},
    {DType::bf16, 2, {"BF16"}},
    {DType::f32, 4, {"F32"}},
    {DType::f64, 8, {"F64"}},
    {DType::c32, 4, {"F16", true}},
    {DType::c64, 8, {"C64"}},
    {DType::c128, 16, {"F64", true}},
}};

const Row& row(DType dtype) { return kRows[static_cast<std::size_t>(dtype)]; }

constexpr bool in_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].dtype != static_cast<DType>(i)) return false;
  }
  return true;
}
static_assert(in_order());

}  // namespace

StoredDType stored_as(DType dtype) { return row(dtype).stored; }

std::optional<DType> dtype_of_stored(std::string_view name) {
  for (const Row& each : kRows) {
    if (each.stored.name == name && !each.stored.pairs) return each.dtype;
  }
  return std::nullopt;
}

std::string sizes_text(DType dtype, const Shape& shape) {
  return concat(to_text(dtype), '[', join(shape), ']');
}

std::int64_t element_bytes(DType dtype) { return row(dtype).bytes; }

std::uint64_t bytes_of(DType dtype, const Shape& shape) {
  auto bytes = static_cast<std::uint64_t>(element_bytes(dtype));
  for (const std::int64_t size : shape) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

}  // namespace intarsia::checkpoint
