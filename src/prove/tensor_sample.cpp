#include "prove/tensor_sample.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "prove/literals.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

/// A stream of numbers that depends on its seed alone.
class Stream {
 public:
  explicit Stream(std::uint64_t seed) : seed_(seed) {}

  std::uint64_t bits() { return hash_mix(seed_, next_++); }
  /// In the open interval (0, 1).
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }
  std::int64_t integer(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

/// Values 0.5 apart, none twice also by size: ..., -0.875, -0.375, 0.125, 0.625, ...
std::vector<double> distinct_values(std::size_t n, bool integral, bool from_zero, Stream& stream) {
  std::vector<double> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto rank = static_cast<double>(i) - (from_zero ? 0.0 : static_cast<double>(n / 2));
    out[i] = integral ? rank : rank / 2 + 0.125;
  }
  for (std::size_t i = n; i > 1; --i) {
    std::swap(out[i - 1],
              out[static_cast<std::size_t>(stream.integer(0, static_cast<std::int64_t>(i) - 1))]);
  }
  return out;
}

std::vector<double> draw(const TensorSample& s, std::size_t n, Stream& stream) {
  using Values = TensorSample::Values;
  const at::ScalarType type = scalar_type(s.dtype);
  const bool integral = at::isIntegralType(type, /*includeBool=*/true);
  const bool from_zero = s.dtype == DType::b1 || s.dtype == DType::u8 || s.dtype == DType::u16 ||
                         s.dtype == DType::u32 || s.dtype == DType::u64;
  const auto integer = [](double v) { return static_cast<std::int64_t>(v); };
  if (s.values == Values::distinct) return distinct_values(n, integral, from_zero, stream);
  std::vector<double> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    switch (s.values) {
      case Values::usual:
        out[i] = s.dtype == DType::b1 ? static_cast<double>(stream.integer(0, 1))
                 : integral           ? static_cast<double>(stream.integer(from_zero ? 0 : -4, 4))
                                      : stream.normal();
        break;
      case Values::below:
        out[i] = static_cast<double>(stream.integer(0, integer(s.numbers[0]) - 1));
        break;
      case Values::positive:
        out[i] =
            integral ? static_cast<double>(stream.integer(1, 4)) : 0.5 + 1.5 * stream.uniform();
        break;
      case Values::between:
        out[i] =
            integral
                ? static_cast<double>(stream.integer(integer(s.numbers[0]), integer(s.numbers[1])))
                : s.numbers[0] + (s.numbers[1] - s.numbers[0]) * stream.uniform();
        break;
      case Values::listed:
        out[i] = s.numbers[i % s.numbers.size()];
        break;
      case Values::distinct:
        break;
    }
  }
  return out;
}

}  // namespace

TensorSample read_tensor(Cursor& cursor) {
  using Values = TensorSample::Values;
  TensorSample out;
  out.dtype = read_dtype(cursor);
  const auto size = [&] {
    Cursor here = cursor;
    const std::int64_t value = cursor.integer();
    if (value < 0) here.fail_here("a size, 0 or more");
    return value;
  };
  out.sizes = read_list<std::int64_t>(cursor, "[", "]", size);
  Cursor here = cursor;
  if (cursor.accept("<")) {
    out.values = Values::below;
    out.numbers = {static_cast<double>(cursor.integer())};
    if (out.numbers[0] < 1) here.fail_here("a limit of 1 or more, as values begin at 0");
  } else if (cursor.accept(">")) {
    cursor.expect("0");
    out.values = Values::positive;
  } else if (cursor.accept("in")) {
    out.values = Values::between;
    out.numbers = read_list<double>(cursor, "(", ")", [&] { return read_double(cursor); });
    if (out.numbers.size() != 2 || out.numbers[0] >= out.numbers[1]) {
      here.fail_here("an interval such as in(-1, 1)");
    }
  } else if (cursor.accept("distinct")) {
    out.values = Values::distinct;
  } else if (cursor.accept("of")) {
    out.values = Values::listed;
    out.numbers = read_list<double>(cursor, "(", ")", [&] { return read_double(cursor); });
    if (out.numbers.empty()) here.fail_here("a value or more, such as of(2, 0)");
  }
  here = cursor;
  if (cursor.accept("~")) {
    out.order = read_list<std::int64_t>(cursor, "(", ")", [&] { return cursor.integer(); });
    std::vector<std::int64_t> sorted = out.order;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::int64_t> dims(out.sizes.size());
    std::iota(dims.begin(), dims.end(), 0);
    if (sorted != dims) here.fail_here(concat("an order of all ", dims.size(), " dimensions"));
    if (out.order == dims) out.order.clear();
  }
  return out;
}

TensorSample TensorSample::parse(std::string_view text) {
  Cursor cursor("TensorSample::parse", text);
  TensorSample out = read_tensor(cursor);
  cursor.end();
  return out;
}

std::string TensorSample::to_string() const {
  std::string text = concat(to_text(dtype), '[', join(sizes, ", "), ']');
  switch (values) {
    case Values::usual:
      break;
    case Values::below:
      text += concat('<', static_cast<std::int64_t>(numbers[0]));
      break;
    case Values::positive:
      text += ">0";
      break;
    case Values::between:
      text += concat("in(", join(numbers, ", "), ')');
      break;
    case Values::distinct:
      text += "distinct";
      break;
    case Values::listed:
      text += concat("of(", join(numbers, ", "), ')');
      break;
  }
  if (!order.empty()) text += concat("~(", join(order, ", "), ')');
  return text;
}

std::int64_t TensorSample::count() const { return c10::multiply_integers(sizes); }

at::Tensor TensorSample::make(std::uint64_t seed) const {
  // Reading its own text is the check of what a caller may have changed.
  const std::string text = to_string();
  parse(text);
  Stream stream(hash_mix(hash_text(text), seed));
  const bool complex = at::isComplexType(scalar_type(dtype));
  const auto n = static_cast<std::size_t>(count());
  std::vector<double> drawn = draw(*this, complex ? 2 * n : n, stream);
  const auto kind = complex ? at::kComplexDouble : at::kDouble;
  at::Tensor out = at::from_blob(drawn.data(), sizes, at::TensorOptions(kind))
                       .to(scalar_type(dtype), /*non_blocking=*/false, /*copy=*/true);
  if (order.empty()) return out;
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    back[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
  }
  return out.permute(order).contiguous().permute(back);
}

}  // namespace intarsia
